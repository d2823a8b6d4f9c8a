#include "lanes/cuda_ipc.h"

#include <algorithm>
#include <cstring>

#include "lanes/cuda_ipc_message.h"

namespace megatronapp::rdma {

namespace {

constexpr std::size_t kCopyStreams = 4;

}  // namespace

CudaIpcLane::CudaIpcLane(Matcher& core, std::shared_ptr<GpuEvents> events, std::shared_ptr<StreamWaits> stream_waits,
                         std::shared_ptr<const Segment> inbound, std::shared_ptr<const Segment> outbound,
                         const Sockets& sockets, std::size_t pool_bytes)
    : core_(core), driver_(CudaDriver::get()), events_(std::move(events)), stream_waits_(std::move(stream_waits)),
      inbound_(std::move(inbound)), outbound_(std::move(outbound)), in_((*inbound_)->flags), out_((*outbound_)->flags), sent_(events_->context()),
      landed_(events_->context()), pool_(sockets.own, pool_bytes), peer_chunks_(sockets.peer), streams_(kCopyStreams) {
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
}

void CudaIpcLane::wait(const Flag& flag, void* stream) {
    check_cuda(driver_.stream_wait(stream, flag.device, flag.value, CudaDriver::kAtLeast), "cuStreamWaitValue32");
}

// ---- sending

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

Stop CudaIpcLane::stop(const OperationPtr& send) {
    const auto found = std::find_if(
        waiting_.begin(), waiting_.end(), [&](const Matched& matched) { return matched.send == send; });
    if (found == waiting_.end()) {
        return Stop::kTooLate;
    }
    waiting_.erase(found);
    return Stop::kStopped;
}

// Whether it can't run before the other anyway: both ends have posted it later to the same streams.
bool CudaIpcLane::comes_after(const Matched& matched, const Matched& earlier) {
    return matched.receive_stream == earlier.receive_stream && matched.send->stream == earlier.send->stream &&
           matched.send->ready.receive > earlier.send->ready.receive && matched.send->id > earlier.send->id;
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

// False: not yet, since the streams or the flags are taken by others.
bool CudaIpcLane::try_launch(const Matched& matched) {
    Operation& send = *matched.send;
    if (!sent_.take(send)) {
        return false;
    }
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
    const auto found = receives_.find(operation.id);
    if (found != receives_.end()) {  // it has not ended well: else it would be forgotten
        Receive& receive = found->second;
        enter();
        reach(receive.landing ? in_.done(receive.slot, receive.value) : operation.flag);
        if (untouched(receive)) {
            forget(receive);
            receives_.erase(found);
        }
    } else if (operation.direction == Direction::kSend) {
        sent_.give_back(operation);
        events_->give_back(operation);
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
