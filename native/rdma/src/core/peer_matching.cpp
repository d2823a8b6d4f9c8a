// Which send goes into which receive, when it is given to its lane, and how it is taken back.
//
// A receiver tells that it is ready (kReady); the sender matches that with its send, queues the send, and gives it to the
// lane of the receiver's choice once there is room (Limits::in_flight_bytes). A send for which nobody is ready is announced,
// so that the receiver can see it. Through shared memory a sender is woken for a receiver that is ready in host memory only
// where it has announced its send: else it reads that when it posts it. Where both cross, the receiver wakes it as it reads
// the announcement. A matched send that its lane can still stop is as if it never was: the receiver's message is kept for
// another send, or the send for another receive, whichever end wanted to take its own back.
//
// Only the sender decides, so that both ends agree: a receiver asks (kCancel) and is answered (kCancelled, or
// kNotCancelled when too late). Where a receiver is ready in GPU memory and the tensor is in host memory, the sender asks it
// to be ready once more, in host memory (kStage).
#include <algorithm>

#include "common/clock.h"
#include "core/control.h"
#include "core/peer.h"

namespace megatronapp::rdma {

namespace {

constexpr std::size_t kMaxUnmatched = 1 << 20;  // of one peer, and as many receives that it is ready for
constexpr std::uint8_t kMaxDtypes = 64;

// A descriptor that a reader can show.
bool known(const Descriptor& what) {
    return what.dimensions <= kMaxDimensions && what.dtype < kMaxDtypes && what.memory <= Memory::kCuda;
}

}  // namespace

void Peer::match_or_announce(const OperationPtr& send) {
    const auto found = readies_.find(send->tag);
    if (found == readies_.end()) {
        return announce(send);
    }
    if (found->second.staging) {  // its answer comes
        sends_[send->tag] = send;
        return;
    }
    const Message message = found->second.message;
    readies_.erase(found);
    match(send, message);
}

// Nobody is ready for it: the receiver may see that it is there.
void Peer::announce(const OperationPtr& send) {
    sends_[send->tag] = send;
    Message message = of_kind(MessageKind::kSendPending, 0, send->tag);
    message.what = send->what;
    tell(message);
}

void Peer::match(const OperationPtr& send, const Message& ready) {
    if (!(send->what == ready.what)) {
        Message refusal = of_kind(MessageKind::kRefused, ready.receive, ready.tag);
        refusal.what = send->what;
        tell(refusal);
        send->other = ready.what;
        return finished(send, Status::kMismatch);
    }
    const bool on_gpu = send->what.memory == Memory::kCuda;
    if (ready.via == Memory::kCuda && !(on_gpu && cuda_ != nullptr)) {
        sends_[send->tag] = send;
        readies_[send->tag] = Ready{ready, true};
        return tell(of_kind(MessageKind::kStage, ready.receive, ready.tag));
    }
    send->ready = ready;
    send->matched = true;
    guarded([&] {
        if (on_gpu && send->via != ready.via) {
            send->via = ready.via;
            lane_of(*send).posted(*send);
        }
        queue_.push(send);
        start_queued();
    });
}

// Gives matched sends to their lanes, in their order, as long as there is room.
bool Peer::start_queued() {
    bool moved = false;
    while (!queue_.empty() && has_room(*queue_.front())) {
        const OperationPtr send = queue_.front();
        queue_.pop_front();
        send->started = true;
        if (limits_.in_flight_bytes != 0) {
            in_flight_.push_back(send);
        }
        lane_of(*send).start(send, send->ready);
        moved = true;
    }
    return moved;
}

bool Peer::has_room(const Operation& send) {
    if (limits_.in_flight_bytes == 0) {
        return true;
    }
    const std::uint64_t bytes = in_flight_bytes();
    return bytes == 0 || bytes + send.what.bytes <= limits_.in_flight_bytes;
}

// Sends that wait for work of the program's own do not count: that work may need a message that is still queued.
std::uint64_t Peer::in_flight_bytes() {
    in_flight_.erase(std::remove_if(in_flight_.begin(), in_flight_.end(),
                                    [](const OperationPtr& each) { return !each->pending() || !each->started; }),
                     in_flight_.end());
    if (events_ != nullptr) {
        events_->enter();
    }
    std::uint64_t bytes = 0;
    for (const OperationPtr& each : in_flight_) {
        const bool on_gpu = each->what.memory == Memory::kCuda;
        bytes += on_gpu && lane_of(*each).held_up(*each) ? 0 : each->what.bytes;
    }
    return bytes;
}

// ---- taking back

void Peer::cancel(const OperationPtr& operation) {
    if (!operation->pending() || operation->cancel == Cancel::kAsked) {
        return;
    }
    operation->cancel = Cancel::kAsked;
    if (operation->direction == Direction::kReceive) {
        return tell(of_kind(MessageKind::kCancel, operation->id, operation->tag));
    }
    if (!operation->matched) {
        return withdraw(operation);
    }
    switch (take_back(operation)) {
        case Stop::kStopped: return stopped(operation);
        case Stop::kSoon: return;
        case Stop::kTooLate: operation->cancel = Cancel::kTooLate;
    }
}

void Peer::withdraw(const OperationPtr& send) {
    tell(of_kind(MessageKind::kWithdrawn, 0, send->tag));
    sent_.forget(send->tag);
    finished(send, Status::kCancelled);
}

Stop Peer::take_back(const OperationPtr& send) {
    return send->started ? lane_of(*send).stop(send) : (queue_.remove(send), Stop::kStopped);
}

// Both ends may have wanted it. The receiver's buffer, if it still is one, is ready for another send.
void Peer::stopped(const OperationPtr& send) {
    const Message ready = send->ready;
    send->offset = 0;
    send->matched = send->started = false;
    if (send->peer_cancels) {
        send->peer_cancels = false;
        tell(of_kind(MessageKind::kCancelled, ready.receive, ready.tag));
    } else {
        readies_[ready.tag] = Ready{ready, false};
    }
    if (send->cancel == Cancel::kAsked) {
        sent_.forget(send->tag);
        finished(send, Status::kCancelled);
    } else {
        announce(send);
    }
}

void Peer::cancelled_by_peer(const Message& message) {
    const auto found = readies_.find(message.tag);
    if (found != readies_.end() && found->second.message.receive == message.receive) {
        readies_.erase(found);
        tell(of_kind(MessageKind::kCancelled, message.receive, message.tag));
        const auto waits = sends_.find(message.tag);
        return waits == sends_.end() ? void() : announce(OperationPtr(waits->second));
    }
    const OperationPtr send = matched_with(message.receive);
    if (send == nullptr) {
        return;  // it has ended: the receiver learns that otherwise
    }
    send->peer_cancels = true;
    switch (take_back(send)) {
        case Stop::kStopped: return stopped(send);
        case Stop::kSoon: return;
        case Stop::kTooLate:
            send->peer_cancels = false;
            tell(of_kind(MessageKind::kNotCancelled, message.receive, message.tag));
    }
}

void Peer::not_cancelled(const Message& message) {
    if (const OperationPtr receive = receiving(message.receive)) {
        receive->cancel = Cancel::kTooLate;
        listener_.wake();
    }
}

OperationPtr Peer::matched_with(std::uint64_t receive) const {
    const auto found = std::find_if(pending_.begin(), pending_.end(), [&](const auto& entry) {
        return entry.second->direction == Direction::kSend && entry.second->matched &&
               entry.second->ready.receive == receive;
    });
    return found == pending_.end() ? nullptr : found->second;
}

// ---- messages of the cores

void Peer::tell(const Message& message) { tell(message, true); }

void Peer::tell(const Message& message, bool urgent) {
    if (shm_ != nullptr) {
        shm_->post(message, urgent);
    } else {
        wire_.post(message);
    }
}

void Peer::ring_doorbell() {
    if ((*outbound_)->sleeping.load() != 0 && (*outbound_)->sleeping.exchange(0) != 0) {
        wire_.post(of_kind(MessageKind::kDoorbell));
    }
}

void Peer::on_control(const Message& message) {
    if (lost()) {
        return;
    }
    switch (message.kind) {
        case MessageKind::kReady: return ready(message);
        case MessageKind::kRefused: return refused(message);
        case MessageKind::kCancel: return cancelled_by_peer(message);
        case MessageKind::kNotCancelled: return not_cancelled(message);
        case MessageKind::kSendPending: return send_pending(message);
        case MessageKind::kWithdrawn: return drop_pending_send(message.tag);
        case MessageKind::kStage: return stage(message);
        case MessageKind::kCancelled:
            received_.forget(message.tag);
            if (const OperationPtr receive = receiving(message.receive)) {
                finished(receive, Status::kCancelled);
            }
            return;
        case MessageKind::kClose:
            departed_ = true;
            sent_by_peer_ = message.length;
            return ack_close();
        case MessageKind::kCloseAck: close_acked_ = true; return;
        case MessageKind::kChunkEnded:
            if (cuda_ != nullptr) {
                cuda_->chunk_ended(message.receive);
            }
            return;
        case MessageKind::kDoorbell:
        case MessageKind::kHeartbeat:
        case MessageKind::kData: return;
    }
    wire_.close("it does not keep to the protocol");
}

void Peer::ready(const Message& message) {
    if (!known(message.what) || readies_.size() >= kMaxUnmatched) {
        return wire_.close("it does not keep to the protocol");
    }
    if (cuda_ != nullptr && message.via == Memory::kCuda) {
        guarded([&] { cuda_->announced(message); });
        if (lost()) {
            return;
        }
    }
    const auto found = readies_.find(message.tag);
    if (found != readies_.end()) {
        if (!found->second.staging || found->second.message.receive != message.receive) {
            return wire_.close("it was ready twice for one tag");
        }
        readies_.erase(found);
    }
    const auto waits = sends_.find(message.tag);
    if (waits != sends_.end()) {
        const OperationPtr send = waits->second;
        sends_.erase(waits);
        match(send, message);
    } else {
        readies_.emplace(message.tag, Ready{message, false});
    }
}

void Peer::refused(const Message& message) {
    if (const OperationPtr receive = receiving(message.receive)) {
        receive->other = message.what;
        finished(receive, Status::kMismatch);
    }
}

// What crosses a receive that was posted meanwhile is no news, but the sender may sleep, and is to look who is ready.
void Peer::send_pending(const Message& message) {
    if (!known(message.what) || peer_sends_.size() >= kMaxUnmatched) {
        return wire_.close("it does not keep to the protocol");
    }
    if (received_.used(message.tag) || peer_send_order_.count(message.tag) != 0) {
        return shm_ != nullptr ? shm_->hurry() : void();
    }
    peer_send_order_[message.tag] = ++peer_sends_count_;
    peer_sends_[peer_sends_count_] = PendingSend{rank_, message.tag, message.what, common::now_ns()};
    listener_.wake();
}

void Peer::drop_pending_send(std::uint64_t tag) {
    const auto found = peer_send_order_.find(tag);
    if (found != peer_send_order_.end()) {
        peer_sends_.erase(found->second);
        peer_send_order_.erase(found);
    }
}

void Peer::add_pending_sends(std::vector<PendingSend>& to, std::uint64_t mask, std::uint64_t value) const {
    for (const auto& [order, send] : peer_sends_) {
        if ((send.tag & mask) == value) {
            to.push_back(send);
        }
    }
}

// The sender's tensor is in host memory, and this one's is ready in GPU memory.
void Peer::stage(const Message& message) {
    const OperationPtr receive = receiving(message.receive);
    if (receive == nullptr || receive->cancel == Cancel::kAsked) {
        return;  // the sender learns it
    }
    if (receive->via != Memory::kCuda || receive->buffer != receive->data || receive->tag != message.tag) {
        return wire_.close("it does not keep to the protocol");
    }
    guarded([&] {
        Message again = of_kind(MessageKind::kReady, receive->id, receive->tag);
        again.what = receive->what;
        staged_->bring(receive, again);
        tell(again);
    });
}

}  // namespace megatronapp::rdma
