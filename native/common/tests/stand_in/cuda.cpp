// A CUDA driver whose GPU memory is the process's own and whose streams are threads: for tests, without a GPU, of what
// the lanes and the recorder do around the driver. It says nothing about GPUs. Built as libcuda.so.1. Memory that is
// handed to others is an anonymous file.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <mutex>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace {

using Address = std::uint64_t;
constexpr int kNotReady = 600;
constexpr std::size_t kPage = 4096;

struct Reached {
    std::atomic<int> left{0};  // records that are not reached yet
    std::atomic<std::int64_t> at_ns{0};
};

// May be destroyed before it is reached.
struct Event {
    std::shared_ptr<Reached> reached = std::make_shared<Reached>();
};

std::atomic<int> failure{0};
std::atomic<int> synchronizations{0};
std::atomic<int> slow_readings{0}, allocations{0};
std::atomic<void*> captured{&failure};

class Stream {
public:
    Stream() : thread_([this] { run(); }) {}
    ~Stream() {
        push({});
        thread_.join();
    }
    void push(std::function<void()> task) {
        const std::lock_guard<std::mutex> lock(mutex_);
        tasks_.push_back(std::move(task));
        ++open_;
        changed_.notify_all();
    }
    bool idle() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return open_ == 0;
    }
    void synchronize() {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return open_ == 0; });
    }

private:
    void run() {
        for (;;) {
            std::unique_lock<std::mutex> lock(mutex_);
            changed_.wait(lock, [this] { return !tasks_.empty(); });
            const std::function<void()> task = std::move(tasks_.front());
            tasks_.pop_front();
            lock.unlock();
            if (!task) {
                return;
            }
            task();
            lock.lock();
            --open_;
            changed_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> tasks_;
    int open_ = 0;
    std::thread thread_;
};

Stream& of(void* stream) {
    static Stream ordinary;
    return stream == nullptr ? ordinary : *static_cast<Stream*>(stream);
}

// While the program is in the driver for a stream, as where it loads a kernel, no other thread comes in.
std::mutex inside;
void enter() { const std::lock_guard<std::mutex> lock(inside); }

template <typename Condition>
void wait_until(Condition condition) {
    while (!condition()) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
}

std::atomic<std::uint32_t>& word(Address address) { return *reinterpret_cast<std::atomic<std::uint32_t>*>(address); }

}  // namespace

extern "C" {

int cuCtxGetCurrent(void** context) { return *context = &failure, 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuMemHostRegister_v2(void*, std::size_t, unsigned) { return 0; }
int cuMemHostUnregister(void*) { return 0; }
int cuMemHostGetDevicePointer_v2(Address* to, void* from, unsigned) { return *to = reinterpret_cast<Address>(from), 0; }
int cuCtxGetDevice(int* device) { return *device = 0, 0; }
int cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = *greatest = 0, 0; }

int cuMemGetAllocationGranularity(std::size_t* bytes, const void*, int) { return *bytes = kPage, 0; }
int cuMemCreate(std::uint64_t* handle, std::size_t bytes, const void*, std::uint64_t) {
    ++allocations;
    const int descriptor = memfd_create("stand-in", MFD_CLOEXEC);
    return *handle = static_cast<std::uint64_t>(descriptor), ftruncate(descriptor, static_cast<off_t>(bytes));
}
int cuMemExportToShareableHandle(int* to, std::uint64_t handle, int, std::uint64_t) {
    return *to = fcntl(static_cast<int>(handle), F_DUPFD_CLOEXEC, 0), 0;
}
int cuMemImportFromShareableHandle(std::uint64_t* handle, void* from, int) {
    const auto descriptor = static_cast<int>(reinterpret_cast<std::intptr_t>(from));
    return *handle = static_cast<std::uint64_t>(fcntl(descriptor, F_DUPFD_CLOEXEC, 0)), 0;
}
int cuMemRelease(std::uint64_t handle) { return close(static_cast<int>(handle)); }
int cuMemAddressReserve(Address* to, std::size_t bytes, std::size_t, Address, std::uint64_t) {
    *to = reinterpret_cast<Address>(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    return 0;
}
int cuMemAddressFree(Address address, std::size_t bytes) { return munmap(reinterpret_cast<void*>(address), bytes); }
int cuMemMap(Address address, std::size_t bytes, std::size_t, std::uint64_t handle, std::uint64_t) {
    void* at = reinterpret_cast<void*>(address);
    const int descriptor = static_cast<int>(handle);
    return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor, 0) == at ? 0 : 1;
}
int cuMemSetAccess(Address, std::size_t, const void*, std::size_t) { return 0; }
int cuMemUnmap(Address address, std::size_t bytes) {
    void* at = reinterpret_cast<void*>(address);
    return mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at ? 0 : 1;
}

int cuStreamCreateWithPriority(void** stream, unsigned, int) { return *stream = new Stream, 0; }
int cuStreamCreate(void** stream, unsigned) { return *stream = new Stream, 0; }
int cuStreamDestroy_v2(void* stream) { return delete static_cast<Stream*>(stream), 0; }
int cuStreamSynchronize(void* stream) { return of(stream).synchronize(), 0; }
int cuStreamQuery(void* stream) { return of(stream).idle() ? 0 : kNotReady; }

int cuStreamIsCapturing(void* stream, int* status) { return *status = stream == captured ? 1 : 0, 0; }
int cuThreadExchangeStreamCaptureMode(int*) { return 0; }

int cuStreamWaitEvent(void* stream, void* event, unsigned) {
    enter();
    const auto reached = static_cast<Event*>(event)->reached;
    return of(stream).push([reached] { wait_until([&] { return reached->left == 0; }); }), 0;
}

struct Write {
    unsigned operation;
    Address address;
    std::uint64_t value;
    std::uint64_t padding[3];
};
int cuStreamBatchMemOp_v2(void* stream, unsigned count, Write* writes, unsigned) {
    for (unsigned i = 0; i < count; ++i) {
        const Write write = writes[i];
        of(stream).push([=] { word(write.address).store(static_cast<std::uint32_t>(write.value)); });
    }
    return 0;
}

int cuStreamWriteValue32_v2(void* stream, Address address, std::uint32_t value, unsigned) {
    enter();
    return of(stream).push([=] { word(address).store(value); }), 0;
}

int cuStreamWaitValue32_v2(void* stream, Address address, std::uint32_t value, unsigned) {
    enter();
    return of(stream).push([=] {
        wait_until([=] { return static_cast<std::int32_t>(word(address).load() - value) >= 0; });
    }), 0;
}

// That one copy has ended may be told to another's stream through memory that two ranks share. Here they are in one process,
// which maps it at two addresses: a sanitizer can't follow that. So it is told here that copies come one after the other.
int cuMemcpyAsync(Address to, Address from, std::size_t bytes, void* stream) {
    enter();
    static std::atomic<int> copies{0};
    return of(stream).push([=] {
        ++copies;
        std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
        ++copies;
    }), 0;
}

int cuEventCreate(void** event, unsigned) { return *event = new Event, 0; }
int cuEventDestroy_v2(void* event) { return delete static_cast<Event*>(event), 0; }
int cuEventQuery(void* event) {
    enter();
    return failure != 0 ? failure.load() : static_cast<Event*>(event)->reached->left == 0 ? 0 : kNotReady;
}
int cuEventSynchronize(void* event) {
    ++synchronizations;
    return wait_until([=] { return static_cast<Event*>(event)->reached->left == 0; }), failure.load();
}

int cuEventRecord(void* event, void* stream) {
    enter();
    const auto reached = static_cast<Event*>(event)->reached;
    ++reached->left;
    return of(stream).push([reached] {
        reached->at_ns = std::chrono::steady_clock::now().time_since_epoch().count();
        --reached->left;
    }), 0;
}

int cuEventElapsedTime_v2(float* milliseconds, void* from, void* to) {
    const Reached &first = *static_cast<Event*>(from)->reached, &second = *static_cast<Event*>(to)->reached;
    if (first.left != 0 || second.left != 0) {
        return kNotReady;
    }
    return *milliseconds = static_cast<float>(static_cast<double>(second.at_ns - first.at_ns) / 1e6), failure.load();
}

int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
    ++slow_readings;
    return cuEventElapsedTime_v2(milliseconds, from, to);
}

// From now on the device answers with this error; 0: no more.
void stand_in_fail(int error) { failure = error; }
// What a kernel that is loaded now does: the driver waits for the stream, and nobody comes into it meanwhile.
void stand_in_load(void* stream) {
    const std::lock_guard<std::mutex> lock(inside);
    of(stream).synchronize();
}
// From now on this stream is being captured into a graph; the same address that no stream has: none.
void stand_in_capture(void* stream) { captured = stream; }
// How often an event was read back by the call that asks the device, too.
int stand_in_slow_readings() { return slow_readings; }
// How often memory was made.
int stand_in_allocations() { return allocations; }
// How often an event was waited for.
int stand_in_synchronizations() { return synchronizations; }
}
