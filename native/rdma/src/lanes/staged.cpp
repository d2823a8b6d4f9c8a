#include "lanes/staged.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <sys/mman.h>
#include <system_error>

#include "api/errors.h"
#include "lanes/cuda_ipc_message.h"

namespace megatronapp::rdma {

namespace {

constexpr std::size_t kMaxSideStreams = 16;

}  // namespace

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

StagedLane::StagedLane(Matcher& core, Lane& host, std::shared_ptr<GpuEvents> events,
                       std::shared_ptr<StreamWaits> stream_waits, CudaIpcLane* cuda)
    : core_(core), host_(host), driver_(CudaDriver::get()), events_(std::move(events)),
      stream_waits_(std::move(stream_waits)), cuda_(cuda), pool_(std::make_unique<StagingPool>(driver_)) {
    check_cuda(driver_.stream_create(&stream_, CudaDriver::kNonBlocking, 0), "cuStreamCreate");
}

StagedLane::~StagedLane() {
    enter();
    for (const auto& [producer, stream] : side_streams_) {
        driver_.stream_synchronize(stream);
        driver_.stream_destroy(stream);
    }
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
    Staging& staging = stage(send, address_of(send), Where::kDue);
    void* side = send.flag.host == nullptr ? side_stream(send.stream) : nullptr;
    if (side != nullptr && flags().take(send)) {
        queue_send(staging, side);
    }
    moving_.push_back(send.id);
    host_.posted(send);
}

OperationFlags& StagedLane::flags() {
    if (!flags_) {
        flags_.emplace(events_->context());
    }
    return *flags_;
}

// None: there are too many.
void* StagedLane::side_stream(void* producer) {
    const auto found = side_streams_.find(producer);
    if (found != side_streams_.end()) {
        return found->second;
    }
    if (side_streams_.size() == kMaxSideStreams) {
        return nullptr;
    }
    void* made = nullptr;
    check_cuda(driver_.stream_create(&made, CudaDriver::kNonBlocking, 0), "cuStreamCreate");
    return side_streams_[producer] = made;
}

void StagedLane::wait(const Flag& flag, void* stream) {
    check_cuda(driver_.stream_wait(stream, flag.device, flag.value, CudaDriver::kAtLeast), "cuStreamWaitValue32");
}

void StagedLane::write(const Flag& flag, void* stream) {
    check_cuda(driver_.stream_write(stream, flag.device, flag.value, 0), "cuStreamWriteValue32");
}

void StagedLane::queue_send(Staging& staging, void* stream) {
    const Operation& send = *staging.operation;
    check_cuda(driver_.stream_wait_event(stream, send.event, 0), "cuStreamWaitEvent");
    if (send.what.bytes != 0) {
        const auto host = reinterpret_cast<CudaAddress>(staging.host);
        check_cuda(driver_.copy(host, staging.device, send.what.bytes, stream), "cuMemcpyAsync");
    }
    write(send.flag, stream);
    staging.queued = true;
    staging.where = Where::kCopying;
}

void StagedLane::queue_receive(Staging& staging, void* stream) {
    const Operation& receive = *staging.operation;
    if (stream != receive.stream) {
        check_cuda(driver_.stream_wait_event(stream, receive.event, 0), "cuStreamWaitEvent");
    }
    wait(flags_->ready(receive), stream);
    if (receive.what.bytes != 0) {
        const auto host = reinterpret_cast<CudaAddress>(staging.host);
        check_cuda(driver_.copy(staging.device, host, receive.what.bytes, stream), "cuMemcpyAsync");
    }
    write(receive.flag, stream);
    staging.queued = true;
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
    return staged_.at(send.id).where != Where::kThere && !events_->reached(send.event);
}

bool StagedLane::lands(const OperationPtr& receive) {
    const auto found = staged_.find(receive->id);
    if (found == staged_.end()) {
        return false;
    }
    Staging& staging = found->second;
    if (staging.where == Where::kUnderWay) {
        staging.where = staging.queued ? Where::kCopying : Where::kDue;
        if (staging.queued) {
            reach(flags_->ready(*receive));
        }
        moving_.push_back(receive->id);
    }
    return staging.where != Where::kThere;
}

// Its end takes calls of the driver, and no stream is known to wait for it.
bool StagedLane::may_be_left(const Staging& staging) const {
    return !staging.queued && !staging.brought && staging.operation->flag.host == nullptr;
}

// What the stream held when the operation was posted comes before the copy.
bool StagedLane::may_copy(const Staging& staging) const {
    return staging.brought ? cuda_->may_write(*staging.operation) : events_->reached(staging.operation->event);
}

bool StagedLane::copied(const Staging& staging) const {
    return staging.queued ? reached(staging.operation->flag) : events_->reached(staging.copied);
}

// Whether anything happened.
bool StagedLane::advance(Staging& staging) {
    const Operation& operation = *staging.operation;
    if (may_be_left(staging) && stream_waits_->driver_may_block()) {
        return false;
    }
    if (staging.where == Where::kCopying ? !copied(staging) : !may_copy(staging)) {
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
    settle();
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
        return found != staged_.end() && !found->second.queued &&
               found->second.operation->direction == Direction::kSend;
    });
}

void StagedLane::follow(const OperationPtr& operation, void* stream) {
    enter();
    if (operation->flag.host != nullptr) {
        if (!reached(operation->flag)) {
            stream_waits_->add(operation->flag);
            wait(operation->flag, stream);
        }
        return;
    }
    if (!flags().take(*operation)) {
        throw Exhausted(std::to_string(kFlagSlots) +
                        " staged messages are open that were sent or that streams wait for, all that may be");
    }
    stream_waits_->add(operation->flag);
    Staging& staging = staged_.at(operation->id);
    if (operation->direction == Direction::kReceive && staging.where == Where::kUnderWay && !staging.brought) {
        queue_receive(staging, stream);
    } else {
        wait(operation->flag, stream);  // the host writes it at the end
    }
}

void StagedLane::ended(Operation& operation) {
    host_.ended(operation);
    const auto found = staged_.find(operation.id);
    if (found == staged_.end()) {
        return;
    }
    Staging& staging = found->second;
    if (!staging.brought) {
        events_->give_back(operation);
    }
    if (staging.queued && !reached(operation.flag)) {  // it has not ended well
        reach(flags_->ready(operation));
        operation.in_use.store(true, std::memory_order_release);
        late_.push_back({operation.shared_from_this(), staging.host});
        staged_.erase(found);
        return;
    }
    if (staging.where == Where::kCopying && !staging.queued) {
        enter();
        driver_.stream_synchronize(stream_);  // it ends badly: nothing may touch the tensor afterwards
    }
    if (flags_) {
        flags_->give_back(operation);
    }
    pool_->give_back(staging.host);
    events_->give_back(staging.copied);
    operation.buffer = operation.data;
    staged_.erase(found);
}

bool StagedLane::settle() {
    for (std::size_t i = 0; i < late_.size();) {
        Late& late = late_[i];
        if (!reached(late.operation->flag)) {
            ++i;
            continue;
        }
        flags_->give_back(*late.operation);
        pool_->give_back(late.host);
        late.operation->in_use.store(false, std::memory_order_release);
        late = late_.back();
        late_.pop_back();
    }
    return late_.empty();
}

}  // namespace megatronapp::rdma
