#include "lanes/cuda_ipc.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace megatronapp::rdma {

namespace {

constexpr std::size_t kCopyStreams = 4;
// A message from this size on comes in two pieces: the first lands while the second, a small one, comes.
constexpr std::size_t kTwoPiecesBytes = 32 << 20;
constexpr std::size_t kSecondPiece = 8;  // so many times smaller than the message: the first then lands in about its time

// What the receiver's lane tells the sender's.
struct Target {
    std::uint64_t chunk;
    std::uint64_t offset;
    std::uint64_t stream;
    std::uint32_t slot;
    std::uint32_t value;
};
static_assert(sizeof(Target) <= kLaneBytes);

// The same on both sides.
struct Pieces {
    explicit Pieces(std::size_t bytes)
        : count(bytes < kTwoPiecesBytes ? 1 : 2), total(bytes), second((bytes - bytes / kSecondPiece) / 4096 * 4096) {}
    std::size_t offset(std::uint32_t i) const { return i == 0 ? 0 : second; }
    std::size_t length(std::uint32_t i) const { return (i + 1 == count ? total : second) - offset(i); }

    std::uint32_t count;
    std::size_t total, second;
};

CudaAddress address_of(const Operation& operation) { return reinterpret_cast<CudaAddress>(operation.data); }

CudaStreamWrite writing(const Flag& flag) {
    CudaStreamWrite write;
    write.address = flag.device;
    write.value = flag.value;
    return write;
}

}  // namespace

CudaIpcLane::CudaIpcLane(Matcher& core, std::shared_ptr<const Segment> inbound, std::shared_ptr<const Segment> outbound,
                         const Sockets& sockets, std::size_t pool_bytes)
    : core_(core), driver_(CudaDriver::get()), inbound_(std::move(inbound)), outbound_(std::move(outbound)),
      in_((*inbound_)->flags), out_((*outbound_)->flags), pool_(sockets.own, pool_bytes), peer_chunks_(sockets.peer),
      streams_(kCopyStreams) {
    check_cuda(driver_.context_get(&context_), "cuCtxGetCurrent");
    sent_ = std::make_unique<OwnFlags>(context_);
    landed_ = std::make_unique<OwnFlags>(context_);
    int least = 0, greatest = 0;
    check_cuda(driver_.priorities(&least, &greatest), "cuCtxGetStreamPriorityRange");
    for (CopyStream& each : streams_) {
        check_cuda(driver_.stream_create(&each.stream, CudaDriver::kNonBlocking, greatest), "cuStreamCreate");
    }
    check_cuda(driver_.stream_create(&landing_stream_, CudaDriver::kNonBlocking, greatest), "cuStreamCreate");
}

CudaIpcLane::~CudaIpcLane() {
    enter();
    for (const CopyStream& each : streams_) {
        driver_.stream_synchronize(each.stream);
        driver_.stream_destroy(each.stream);
    }
    driver_.stream_synchronize(landing_stream_);
    driver_.stream_destroy(landing_stream_);
    for (void* event : events_) {
        driver_.event_destroy(event);
    }
}

void CudaIpcLane::enter() { driver_.context_set(context_); }

void CudaIpcLane::wait(const Flag& flag, void* stream) {
    check_cuda(driver_.stream_wait(stream, flag.device, flag.value, CudaDriver::kAtLeast), "cuStreamWaitValue32");
}

void* CudaIpcLane::take_event() {
    void* event = nullptr;
    if (!events_.empty()) {
        event = events_.back();
        events_.pop_back();
    } else {
        check_cuda(driver_.event_create(&event, CudaDriver::kNoTiming), "cuEventCreate");
    }
    return event;
}

// ---- receiving

void CudaIpcLane::expect(const OperationPtr& operation, Message& message) {
    enter();
    Receive& receive = receives_[operation->id];
    try {
        receive.slot = receive_slots_.take();
    } catch (...) {
        receives_.erase(operation->id);
        throw;
    }
    receive.operation = operation;
    try {
        prepare(receive, message);
    } catch (...) {
        forget(receive);
        receives_.erase(operation->id);
        throw;
    }
    tell_ended_chunks();
}

void CudaIpcLane::prepare(Receive& receive, Message& message) {
    Operation& operation = *receive.operation;
    Target target{};
    bool busy = false;
    if (operation.what.bytes != 0) {
        const ReceivePool::Place place = pool_.take(operation.what.bytes, operation.stream);
        receive.block = place.block;
        busy = place.busy;
        target.chunk = place.block->chunk;
        target.offset = place.block->offset;
    }
    operation.event = take_event();
    check_cuda(driver_.event_record(operation.event, operation.stream), "cuEventRecord");
    const OwnFlags::Pair own = landed_->next(receive.slot);
    operation.flag = own.done;
    receive.value = values_[receive.slot] += Pieces(operation.what.bytes).count;
    const Flag ready = in_.ready(receive.slot, receive.value);
    if (busy) {
        receive.passed = own.ready;
        CudaStreamWrite writes[] = {writing(ready), writing(own.ready)};
        check_cuda(driver_.stream_writes(operation.stream, 2, writes, 0), "cuStreamBatchMemOp");
    } else {
        reach(ready);
    }
    target.stream = reinterpret_cast<std::uint64_t>(operation.stream);
    target.slot = static_cast<std::uint32_t>(receive.slot);
    target.value = receive.value;
    std::memcpy(message.lane, &target, sizeof target);
}

// Neither a stream nor the peer has to do with it any more.
void CudaIpcLane::forget(Receive& receive) {
    if (receive.block != nullptr) {
        pool_.give_back(receive.block);
    }
    receive_slots_.give_back(receive.slot);
    if (receive.operation->event != nullptr) {
        events_.push_back(receive.operation->event);
        receive.operation->event = nullptr;
    }
    receive.operation->in_use.store(false, std::memory_order_release);
}

void CudaIpcLane::tell_ended_chunks() {
    for (const std::uint64_t chunk : pool_.ended()) {
        Message message;
        message.kind = MessageKind::kChunkEnded;
        message.receive = chunk;
        core_.tell(message);
    }
}

// Copies a message out on a stream, piece by piece as it comes.
void CudaIpcLane::land(Receive& receive, void* stream) {
    Operation& operation = *receive.operation;
    receive.landing = true;
    operation.in_use.store(true, std::memory_order_release);
    if (stream != operation.stream) {
        check_cuda(driver_.stream_wait_event(stream, operation.event, 0), "cuStreamWaitEvent");
    }
    const Pieces pieces(operation.what.bytes);
    for (std::uint32_t i = 0; i < pieces.count; ++i) {
        const Flag done = in_.done(receive.slot, receive.value - (pieces.count - 1 - i));
        if (!reached(done)) {
            wait(done, stream);
        }
        if (pieces.length(i) != 0) {
            const std::size_t offset = pieces.offset(i);
            check_cuda(driver_.copy(address_of(operation) + offset, receive.block->address + offset, pieces.length(i),
                                    stream),
                       "cuMemcpyAsync");
        }
    }
    check_cuda(driver_.stream_write(stream, operation.flag.device, operation.flag.value, 0), "cuStreamWriteValue32");
    if (receive.block != nullptr) {
        pool_.landing(receive.block, stream);
    }
}

void CudaIpcLane::follow(const OperationPtr& operation, void* stream) {
    enter();
    const auto found = receives_.find(operation->id);
    if (found != receives_.end() && !found->second.landing && operation->pending()) {
        return land(found->second, stream);
    }
    if (!reached(operation->flag)) {
        wait(operation->flag, stream);
    }
}

bool CudaIpcLane::untouched(const Receive& receive) const {
    if (receive.landing) {
        return reached(receive.operation->flag);
    }
    return !receive.operation->pending() && (receive.passed.host == nullptr || reached(receive.passed));
}

bool CudaIpcLane::progress_receives() {
    bool moved = false;
    for (auto each = receives_.begin(); each != receives_.end();) {
        Receive& receive = each->second;
        if (!receive.landing && receive.operation->pending() && reached(in_.done(receive.slot, receive.value))) {
            enter();
            land(receive, landing_stream_);
            moved = true;
        }
        if (!untouched(receive)) {
            ++each;
            continue;
        }
        const OperationPtr operation = receive.operation;
        enter();
        forget(receive);
        each = receives_.erase(each);
        if (operation->pending()) {
            // Asked after it has landed: before that the peer may have let a copy go into a block that was not ready.
            if ((*inbound_)->abandoned.load() != 0) {
                throw std::runtime_error("the peer has given up");
            }
            core_.finished(operation, Status::kDone);
        }
        moved = true;
    }
    tell_ended_chunks();
    return moved;
}

// ---- sending

void CudaIpcLane::posted(Operation& send) {
    enter();
    const std::size_t slot = send_slots_.take();
    sending_slots_[send.id] = slot;
    send.flag = sent_->next(slot).done;
    send.event = take_event();
    check_cuda(driver_.event_record(send.event, send.stream), "cuEventRecord");
}

void CudaIpcLane::announced(const Message& ready) {
    Target target;
    std::memcpy(&target, ready.lane, sizeof target);
    if (ready.what.bytes != 0) {
        enter();
        peer_chunks_.find(target.chunk, target.offset, ready.what.bytes);
    }
}

void CudaIpcLane::chunk_ended(std::uint64_t chunk) {
    enter();
    peer_chunks_.end(chunk);
}

void CudaIpcLane::start(const OperationPtr& send, const Message& ready) {
    enter();
    Target target;
    std::memcpy(&target, ready.lane, sizeof target);
    if (target.slot >= kFlagSlots) {
        return core_.finished(send, Status::kCorrupt, "the peer names a flag that is not there");
    }
    const CudaAddress to =
        send->what.bytes == 0 ? 0 : peer_chunks_.find(target.chunk, target.offset, send->what.bytes);
    const Matched matched{send, to, target.slot, target.value, out_.ready(target.slot, target.value), target.stream};
    if (!try_launch(matched)) {
        waiting_.push_back(matched);
    }
}

// Whether it can't run before the other anyway: both ends have posted it later to the same streams.
bool CudaIpcLane::comes_after(const Matched& matched, const Matched& earlier) {
    return matched.receive_stream == earlier.receive_stream && matched.send->stream == earlier.send->stream &&
           matched.send->receive > earlier.send->receive && matched.send->id > earlier.send->id;
}

// A message that may have to wait on the GPU gets a stream of its own or one behind a message that comes before it anyway, and
// one stream is always left for those that can run: else two ranks could wait for each other, each with the message that
// the other needs behind another.
CudaIpcLane::CopyStream* CudaIpcLane::stream_for(const Matched& matched, bool runs_at_once) {
    CopyStream *free = nullptr, *behind = nullptr;
    std::size_t free_count = 0;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
        CopyStream& each = streams_[(next_stream_ + i) % streams_.size()];
        if (!each.blocked()) {
            ++free_count;
            free = free == nullptr ? &each : free;
        } else if (behind == nullptr && comes_after(matched, each.last)) {
            behind = &each;
        }
    }
    ++next_stream_;
    return runs_at_once || free_count > 1 ? free : behind;
}

bool CudaIpcLane::try_launch(const Matched& matched) {
    Operation& send = *matched.send;
    const bool ready = reached(matched.ready);
    CopyStream* chosen = stream_for(matched, false);
    if (chosen != nullptr) {
        chosen->last = matched;
        check_cuda(driver_.stream_wait_event(chosen->stream, send.event, 0), "cuStreamWaitEvent");
        if (!ready) {
            wait(matched.ready, chosen->stream);
        }
    } else if (ready && driver_.event_query(send.event) == 0) {  // asked last: it costs more than to wait
        chosen = stream_for(matched, true);
    }
    if (chosen == nullptr) {
        return false;
    }
    send.in_use.store(true, std::memory_order_release);
    launched_.push_back(matched);
    moving_.push_back(matched.send);
    copy_pieces(matched, chosen->stream);
    return true;
}

void CudaIpcLane::copy_pieces(const Matched& matched, void* stream) {
    const Operation& send = *matched.send;
    const Pieces pieces(send.what.bytes);
    for (std::uint32_t i = 0; i < pieces.count; ++i) {
        if (pieces.length(i) != 0) {
            const std::size_t offset = pieces.offset(i);
            check_cuda(driver_.copy(matched.to + offset, address_of(send) + offset, pieces.length(i), stream),
                       "cuMemcpyAsync");
        }
        const std::uint32_t left = pieces.count - 1 - i;
        CudaStreamWrite writes[] = {writing(out_.done(matched.slot, matched.value - left)), writing(send.flag)};
        check_cuda(driver_.stream_writes(stream, left == 0 ? 2 : 1, writes, 0), "cuStreamBatchMemOp");
    }
}

bool CudaIpcLane::progress_sends() {
    bool moved = false;
    for (std::size_t i = 0; i < moving_.size();) {
        const OperationPtr send = moving_[i];
        if (!reached(send->flag)) {
            ++i;
            continue;
        }
        moving_.erase(moving_.begin() + static_cast<std::ptrdiff_t>(i));
        send->in_use.store(false, std::memory_order_release);
        core_.finished(send, Status::kDone);
        moved = true;
    }
    if (moved) {
        launched_.erase(
            std::remove_if(
                launched_.begin(), launched_.end(), [](const Matched& each) { return !each.send->pending(); }),
            launched_.end());
    }
    return moved;
}

// ---- both

bool CudaIpcLane::progress() {
    bool moved = progress_receives() | progress_sends();
    if (!waiting_.empty()) {
        enter();
    }
    for (std::size_t i = waiting_.size(); i > 0; --i) {
        const Matched matched = waiting_.front();
        waiting_.pop_front();
        if (try_launch(matched)) {
            moved = true;
        } else {
            waiting_.push_back(matched);
        }
    }
    return moved;
}

void CudaIpcLane::ended(Operation& operation) {
    const bool well = operation.status.load() == Status::kDone;
    const auto found = receives_.find(operation.id);
    if (found != receives_.end()) {  // it has not ended well: else it would be forgotten
        Receive& receive = found->second;
        enter();
        reach(receive.landing ? in_.done(receive.slot, receive.value) : operation.flag);
        if (untouched(receive)) {
            forget(receive);
            receives_.erase(found);
        }
        return;
    }
    const auto slot = sending_slots_.find(operation.id);
    if (slot == sending_slots_.end()) {
        return;
    }
    if (!well) {
        reach(operation.flag);
    }
    send_slots_.give_back(slot->second);
    sending_slots_.erase(slot);
    if (operation.event != nullptr) {
        events_.push_back(operation.event);
        operation.event = nullptr;
    }
}

void CudaIpcLane::release() {
    for (const Matched& matched : launched_) {
        if (!reached(matched.ready)) {
            (*outbound_)->abandoned.store(1);  // first: what lands there from now on is not to be believed
            reach(matched.ready);
        }
    }
    for (const OperationPtr& send : moving_) {
        failed_sends_.push_back(send);
    }
    moving_.clear();
    launched_.clear();
    waiting_.clear();
}

bool CudaIpcLane::settle() {
    if (receives_.empty() && failed_sends_.empty()) {
        return true;
    }
    enter();
    for (auto each = receives_.begin(); each != receives_.end();) {
        if (untouched(each->second)) {
            forget(each->second);
            each = receives_.erase(each);
        } else {
            ++each;
        }
    }
    if (!failed_sends_.empty()) {
        const bool through = std::all_of(streams_.begin(), streams_.end(), [this](const CopyStream& each) {
            return driver_.stream_query(each.stream) != CudaDriver::kNotReady;
        });
        if (through) {
            for (const OperationPtr& send : failed_sends_) {
                send->in_use.store(false, std::memory_order_release);
            }
            failed_sends_.clear();
        }
    }
    return receives_.empty() && failed_sends_.empty();
}

}  // namespace megatronapp::rdma
