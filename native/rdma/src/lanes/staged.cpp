#include "lanes/staged.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <sys/mman.h>
#include <system_error>

#include "api/errors.h"
#include "lanes/cuda_ipc_message.h"

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

StagedLane::StagedLane(Matcher& core, Lane& host, std::shared_ptr<GpuEvents> events, CudaIpcLane* cuda)
    : core_(core), host_(host), driver_(CudaDriver::get()), events_(std::move(events)), cuda_(cuda),
      pool_(std::make_unique<StagingPool>(driver_)) {
    check_cuda(driver_.stream_create(&stream_, CudaDriver::kNonBlocking, 0), "cuStreamCreate");
}

StagedLane::~StagedLane() {
    enter();
    driver_.stream_synchronize(stream_);
    driver_.stream_destroy(stream_);
    if (abandoned_) {
        static_cast<void>(pool_.release());  // a peer that was given up may still write into it
    }
}

StagedLane::Staging& StagedLane::stage(Operation& operation, CudaAddress device, Where where) {
    enter();
    char* host = pool_->take(operation.what.bytes);
    operation.buffer = host;
    return staged_.insert_or_assign(operation.id, Staging{&operation, device, host, where}).first->second;
}

void StagedLane::posted(Operation& send) {
    stage(send, address_of(send), Where::kDue);
    moving_.push_back(send.id);
    host_.posted(send);
}

void StagedLane::expect(const OperationPtr& receive, Message& message) {
    stage(*receive, address_of(*receive), Where::kUnderWay);
    host_.expect(receive, message);
}

void StagedLane::bring(const OperationPtr& receive, Message& message) {
    stage(*receive, cuda_->block_of(*receive), Where::kUnderWay).brought = true;
    host_.expect(receive, message);
}

void StagedLane::start(const OperationPtr& send, const Message& ready) {
    Staging& staging = staged_.at(send->id);
    if (staging.where == Where::kThere) {
        return host_.start(send, ready);
    }
    staging.matched = send;
}

Stop StagedLane::stop(const OperationPtr& send) {
    Staging& staging = staged_.at(send->id);
    if (staging.matched == nullptr) {
        return host_.stop(send);
    }
    staging.matched.reset();
    return Stop::kStopped;
}

bool StagedLane::held_up(const Operation& send) const {
    const Staging& staging = staged_.at(send.id);
    return staging.where == Where::kDue && !may_copy(staging);
}

bool StagedLane::lands(const OperationPtr& receive) {
    const auto found = staged_.find(receive->id);
    if (found == staged_.end()) {
        return false;
    }
    Staging& staging = found->second;
    if (staging.where == Where::kUnderWay) {
        staging.where = Where::kDue;
        moving_.push_back(receive->id);
    }
    return staging.where != Where::kThere;
}

// What the stream held when the operation was posted comes before the copy.
bool StagedLane::may_copy(const Staging& staging) const {
    return staging.brought ? cuda_->may_write(*staging.operation) : events_->reached(staging.operation->event);
}

// Whether anything happened.
bool StagedLane::advance(Staging& staging) {
    const Operation& operation = *staging.operation;
    if (staging.where == Where::kCopying ? !events_->reached(staging.copied) : !may_copy(staging)) {
        return false;
    }
    if (staging.where == Where::kCopying || operation.what.bytes == 0) {
        staging.where = Where::kThere;
        return true;
    }
    const bool sends = operation.direction == Direction::kSend;
    const auto host = reinterpret_cast<CudaAddress>(staging.host);
    staging.copied = events_->take();
    check_cuda(driver_.copy(sends ? host : staging.device, sends ? staging.device : host, operation.what.bytes, stream_),
               "cuMemcpyAsync");
    check_cuda(driver_.event_record(staging.copied, stream_), "cuEventRecord");
    staging.where = Where::kCopying;
    return true;
}

void StagedLane::there(Staging& staging) {
    if (staging.operation->direction == Direction::kReceive) {
        return core_.staged(core_.receiving(staging.operation->id));
    }
    if (const OperationPtr send = std::move(staging.matched)) {
        staging.matched.reset();
        host_.start(send, send->ready);
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

void StagedLane::follow(const OperationPtr& operation, void* stream) {
    enter();
    if (!flags_) {
        flags_.emplace(events_->context());
    }
    if (operation->flag.host == nullptr && !flags_->take(*operation)) {
        throw Exhausted("streams wait for " + std::to_string(kFlagSlots) + " staged messages already, all that may be");
    }
    const Flag& flag = operation->flag;
    if (!reached(flag)) {
        check_cuda(driver_.stream_wait(stream, flag.device, flag.value, CudaDriver::kAtLeast), "cuStreamWaitValue32");
    }
}

void StagedLane::ended(Operation& operation) {
    host_.ended(operation);
    if (flags_) {
        flags_->give_back(operation);
    }
    const auto found = staged_.find(operation.id);
    if (found == staged_.end()) {
        return;
    }
    Staging& staging = found->second;
    if (staging.where == Where::kCopying) {
        enter();
        driver_.stream_synchronize(stream_);  // it ends badly: nothing may touch the tensor afterwards
    }
    pool_->give_back(staging.host);
    events_->give_back(staging.copied);
    if (!staging.brought) {
        events_->give_back(operation);
    }
    operation.buffer = operation.data;
    staged_.erase(found);
}

}  // namespace megatronapp::rdma
