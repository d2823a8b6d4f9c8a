// A CUDA driver whose GPU memory is the process's own and whose streams are threads: for tests, without a GPU, of what the
// lanes do around the driver. It says nothing about GPUs. Built as libcuda.so.1; each ipc handle holds the address itself.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace {

using Address = std::uint64_t;
constexpr int kNotReady = 600;
constexpr int kBufferId = 7, kIpcCapable = 10, kRangeStart = 11;

// May be destroyed before it is reached.
struct Event {
    std::shared_ptr<std::atomic<int>> left = std::make_shared<std::atomic<int>>(0);  // records that are not reached yet
};

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

template <typename Condition>
void wait_until(Condition condition) {
    while (!condition()) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
}

std::atomic<std::uint32_t>& word(Address address) { return *reinterpret_cast<std::atomic<std::uint32_t>*>(address); }

int attribute(void* to, int name, Address address) {
    switch (name) {
        case kBufferId: std::memcpy(to, &address, sizeof address); return 0;
        case kRangeStart: std::memcpy(to, &address, sizeof address); return 0;
        case kIpcCapable: *static_cast<unsigned*>(to) = 1; return 0;
        default: return 1;
    }
}

}  // namespace

extern "C" {

int cuCtxGetCurrent(void** context) { return *context = nullptr, 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuMemHostRegister_v2(void*, std::size_t, unsigned) { return 0; }
int cuMemHostUnregister(void*) { return 0; }
int cuMemHostGetDevicePointer_v2(Address* to, void* from, unsigned) { return *to = reinterpret_cast<Address>(from), 0; }
int cuIpcGetMemHandle(unsigned char* handle, Address address) { return std::memcpy(handle, &address, sizeof address), 0; }
int cuIpcCloseMemHandle(Address) { return 0; }
int cuPointerGetAttribute(void* to, int name, Address address) { return attribute(to, name, address); }
int cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = *greatest = 0, 0; }
int cuMemAlloc_v2(Address* to, std::size_t bytes) { return *to = reinterpret_cast<Address>(::operator new(bytes)), 0; }
int cuMemFree_v2(Address address) { return ::operator delete(reinterpret_cast<void*>(address)), 0; }

struct Handle {
    unsigned char bytes[64];
};
int cuIpcOpenMemHandle_v2(Address* to, Handle handle, unsigned) { return std::memcpy(to, handle.bytes, sizeof *to), 0; }

int cuPointerGetAttributes(unsigned count, int* names, void** to, Address address) {
    int status = 0;
    for (unsigned i = 0; i < count; ++i) {
        status |= attribute(to[i], names[i], address);
    }
    return status;
}

int cuStreamCreateWithPriority(void** stream, unsigned, int) { return *stream = new Stream, 0; }
int cuStreamDestroy_v2(void* stream) { return delete static_cast<Stream*>(stream), 0; }
int cuStreamSynchronize(void* stream) { return of(stream).synchronize(), 0; }

int cuStreamWaitEvent(void* stream, void* event, unsigned) {
    const auto left = static_cast<Event*>(event)->left;
    return of(stream).push([left] { wait_until([&] { return *left == 0; }); }), 0;
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
    return of(stream).push([=] { word(address).store(value); }), 0;
}

int cuStreamWaitValue32_v2(void* stream, Address address, std::uint32_t value, unsigned) {
    return of(stream).push([=] {
        wait_until([=] { return static_cast<std::int32_t>(word(address).load() - value) >= 0; });
    }), 0;
}

int cuMemcpyAsync(Address to, Address from, std::size_t bytes, void* stream) {
    return of(stream).push([=] {
        std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
    }), 0;
}

int cuEventCreate(void** event, unsigned) { return *event = new Event, 0; }
int cuEventDestroy_v2(void* event) { return delete static_cast<Event*>(event), 0; }
int cuEventQuery(void* event) { return *static_cast<Event*>(event)->left == 0 ? 0 : kNotReady; }

int cuEventRecord(void* event, void* stream) {
    const auto left = static_cast<Event*>(event)->left;
    ++*left;
    return of(stream).push([left] { --*left; }), 0;
}
}
