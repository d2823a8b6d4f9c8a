#include "lanes/staged.h"

#include <algorithm>
#include <cerrno>
#include <sys/mman.h>
#include <system_error>

namespace megatronapp::rdma {

// ---- the pool

StagingPool::~StagingPool() {
    for (const Buffer& each : buffers_) {
        driver_.host_unregister(each.memory);
        munmap(each.memory, each.bytes);
    }
}

char* StagingPool::take(std::size_t bytes) {
    Buffer* best = nullptr;
    for (Buffer& each : buffers_) {
        if (!each.in_use && each.bytes >= bytes && (best == nullptr || each.bytes < best->bytes)) {
            best = &each;
        }
    }
    if (best == nullptr) {
        const std::size_t size = std::max(bytes, kLeastBytes);
        void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            throw std::system_error(errno, std::generic_category(), "no host memory to stage GPU memory in");
        }
        const int status = driver_.host_register(memory, size, CudaDriver::kPortableMapped);
        if (status != 0) {
            munmap(memory, size);
            check_cuda(status, "cuMemHostRegister");
        }
        madvise(memory, size, MADV_DONTFORK);
        best = &buffers_.emplace_back(Buffer{static_cast<char*>(memory), size, false});
    }
    best->in_use = true;
    return best->memory;
}

void StagingPool::give_back(char* memory) {
    for (Buffer& each : buffers_) {
        each.in_use = each.in_use && each.memory != memory;
    }
}

// ---- the lane

StagedLane::StagedLane(Matcher& core, Lane& host)
    : core_(core), host_(host), driver_(CudaDriver::get()), pool_(std::make_unique<StagingPool>(driver_)) {
    check_cuda(driver_.context_get(&context_), "cuCtxGetCurrent");
    check_cuda(driver_.stream_create(&stream_, CudaDriver::kNonBlocking, 0), "cuStreamCreate");
}

StagedLane::~StagedLane() {
    enter();
    driver_.stream_synchronize(stream_);
    driver_.stream_destroy(stream_);
    for (void* event : events_) {
        driver_.event_destroy(event);
    }
    if (abandoned_) {
        static_cast<void>(pool_.release());  // a peer that was given up may still write into it
    }
}

StagedLane::Staging& StagedLane::stage(Operation& operation, Where where) {
    enter();
    if (events_.empty()) {
        void* made = nullptr;
        check_cuda(driver_.event_create(&made, CudaDriver::kNoTiming), "cuEventCreate");
        events_.push_back(made);
    }
    char* host = pool_->take(operation.what.bytes);
    Staging& staging = staged_[operation.id];
    staging = Staging{&operation, operation.data, host, where, nullptr, Message{}};
    operation.event = events_.back();
    events_.pop_back();
    operation.data = host;  // for the host's lane
    check_cuda(driver_.event_record(operation.event, operation.stream), "cuEventRecord");
    return staging;
}

void StagedLane::posted(Operation& send) {
    stage(send, Where::kDue);
    moving_.push_back(send.id);
    host_.posted(send);
}

void StagedLane::expect(const OperationPtr& receive, Message& message) {
    stage(*receive, Where::kUnderWay);
    host_.expect(receive, message);
}

void StagedLane::start(const OperationPtr& send, const Message& ready) {
    Staging& staging = staged_.at(send->id);
    if (staging.where == Where::kThere) {
        return host_.start(send, ready);
    }
    staging.matched = send;
    staging.ready = ready;
}

bool StagedLane::lands(const OperationPtr& receive) {
    Staging& staging = staged_.at(receive->id);
    if (staging.where == Where::kUnderWay) {
        staging.where = Where::kDue;
        moving_.push_back(receive->id);
    }
    return staging.where != Where::kThere;
}

// Whether anything happened. What the stream held when the operation was posted comes before the copy.
bool StagedLane::advance(Staging& staging) {
    Operation& operation = *staging.operation;
    if (driver_.event_query(operation.event) == CudaDriver::kNotReady) {
        return false;
    }
    if (staging.where == Where::kCopying || operation.what.bytes == 0) {
        staging.where = Where::kThere;
        return true;
    }
    const bool sends = operation.direction == Direction::kSend;
    const auto device = reinterpret_cast<CudaAddress>(staging.device);
    const auto host = reinterpret_cast<CudaAddress>(staging.host);
    check_cuda(
        driver_.copy(sends ? host : device, sends ? device : host, operation.what.bytes, stream_), "cuMemcpyAsync");
    check_cuda(driver_.event_record(operation.event, stream_), "cuEventRecord");
    staging.where = Where::kCopying;
    return true;
}

void StagedLane::there(Staging& staging) {
    if (staging.operation->direction == Direction::kReceive) {
        return core_.finished(core_.receiving(staging.operation->id), Status::kDone);
    }
    if (const OperationPtr send = std::move(staging.matched)) {
        host_.start(send, staging.ready);
    }
}

bool StagedLane::progress() {
    if (moving_.empty()) {
        return false;
    }
    enter();
    bool moved = false;
    for (std::size_t i = 0; i < moving_.size();) {
        const auto found = staged_.find(moving_[i]);
        if (found != staged_.end()) {
            moved |= advance(found->second);
        }
        if (found != staged_.end() && found->second.where != Where::kThere) {
            ++i;
            continue;
        }
        moving_.erase(moving_.begin() + static_cast<std::ptrdiff_t>(i));
        if (found != staged_.end()) {
            there(found->second);
        }
    }
    return moved;
}

bool StagedLane::holds_back() const {
    return std::any_of(moving_.begin(), moving_.end(), [this](std::uint64_t id) {
        const auto found = staged_.find(id);
        return found != staged_.end() && found->second.operation->direction == Direction::kSend;
    });
}

void StagedLane::ended(Operation& operation) {
    host_.ended(operation);
    const auto found = staged_.find(operation.id);
    if (found == staged_.end()) {
        return;
    }
    if (found->second.where == Where::kCopying) {
        enter();
        driver_.stream_synchronize(stream_);  // it ends badly: nothing may touch the tensor afterwards
    }
    pool_->give_back(found->second.host);
    events_.push_back(operation.event);
    operation.event = nullptr;
    staged_.erase(found);
}

}  // namespace megatronapp::rdma
