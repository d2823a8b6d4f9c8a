#include "lanes/shm.h"

#include <algorithm>

#include "common/clock.h"

namespace megatronapp::rdma {

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
// Not less: a cursor's store must be seen before the other side's wish for a doorbell is read.
constexpr auto kAcquire = std::memory_order_seq_cst;
constexpr auto kRelease = std::memory_order_seq_cst;
constexpr int kChunksAtOnce = 2;  // between two looks at everything else

}  // namespace

void ShmLane::post(const Message& message, bool urgent) {
    outbox_.push_back(message);
    urgent_ |= urgent;
    flush_mail();
}

void ShmLane::hurry() {
    urgent_ = !outbox_.empty();
    core_.ring_doorbell();
}

bool ShmLane::flush_mail() {
    bool moved = false;
    while (!outbox_.empty()) {
        const std::uint64_t head = out_->mail.head.load(kRelaxed);
        if (head - out_->mail.tail.load(kAcquire) >= kMailSlots) {
            break;
        }
        out_->messages[head % kMailSlots] = outbox_.front();
        outbox_.pop_front();
        out_->mail.head.store(head + 1, kRelease);
        moved = true;
    }
    if (moved && urgent_) {
        core_.ring_doorbell();
        urgent_ = !outbox_.empty();
    }
    return moved;
}

bool ShmLane::read_mail() {
    const std::uint64_t head = in_->mail.head.load(kAcquire);
    const std::uint64_t first = in_->mail.tail.load(kRelaxed);
    if (first == head) {
        return false;
    }
    for (std::uint64_t tail = first; tail != head; ++tail) {
        const Message message = in_->messages[tail % kMailSlots];
        in_->mail.tail.store(tail + 1, kRelease);
        core_.on_control(message);
    }
    if (in_->mail.head.load(kAcquire) - first >= kMailSlots) {
        core_.ring_doorbell();
    }
    return true;
}

void ShmLane::start(const OperationPtr& send, const Message&) {
    sending_.push(send);
    while (write_chunk()) {
    }
}

// What is in the ring already is read before anything that is sent later.
Stop ShmLane::stop(const OperationPtr& send) { return sending_.remove(send) ? Stop::kStopped : Stop::kTooLate; }

bool ShmLane::write_chunk() {
    if (sending_.empty()) {
        return false;
    }
    const std::uint64_t head = out_->data.head.load(kRelaxed);
    if (head - out_->data.tail.load(kAcquire) >= kDataSlots) {
        return false;
    }
    const std::size_t slot = head % kDataSlots;
    learn_cost(slot);
    const OperationPtr send = sending_.front();
    const std::size_t left = send->what.bytes - send->offset;
    const Kernel kernel = left >= kTimedBytes ? choice_.next() : choice_.preferred();
    const std::size_t bytes = std::min({left, choice_.chunk_bytes(kernel), most_bytes_});
    const std::int64_t since_ns = bytes >= kTimedBytes ? common::now_ns() : 0;
    copy(kernel, out_->slots[slot], send->buffer + send->offset, bytes);
    if (bytes >= kTimedBytes) {
        written_[slot] = {kernel, bytes, common::now_ns() - since_ns};
    }
    const bool last = bytes == left;
    const std::uint32_t checksum = checksum_ ? crc32c(out_->slots[slot], bytes) : 0;
    out_->chunks[slot] = Chunk{send->ready.receive, send->offset, static_cast<std::uint32_t>(bytes), checksum, last, 0};
    out_->data.head.store(head + 1, kRelease);
    core_.ring_doorbell();
    send->offset += bytes;
    if (last) {
        sending_.remove(send);
        core_.finished(send, Status::kDone);
    }
    return true;
}

// The slot is free again: how long its reader took for what was in it.
void ShmLane::learn_cost(std::size_t slot) {
    Written& written = written_[slot];
    if (written.bytes != 0) {
        choice_.record(written.kernel, written.bytes, written.ns, out_->chunks[slot].read_ns);
        written.bytes = 0;
    }
}

bool ShmLane::read_chunk() {
    const std::uint64_t tail = in_->data.tail.load(kRelaxed);
    if (in_->data.head.load(kAcquire) == tail) {
        return false;
    }
    Chunk& shared = in_->chunks[tail % kDataSlots];
    const Chunk chunk = shared;
    const char* slot = in_->slots[tail % kDataSlots];
    const OperationPtr receive = core_.receiving(chunk.receive);
    bool corrupt = false;
    if (receive != nullptr) {
        const bool fits = chunk.bytes <= kDataSlotBytes && chunk.offset <= receive->what.bytes &&
                          chunk.bytes <= receive->what.bytes - chunk.offset;
        corrupt = !fits || (checksum_ && crc32c(slot, chunk.bytes) != chunk.checksum);
        if (!corrupt) {
            const std::int64_t since_ns = chunk.bytes >= kTimedBytes ? common::now_ns() : 0;
            copy(Kernel::kCached, receive->buffer + chunk.offset, slot, chunk.bytes);
            shared.read_ns = chunk.bytes >= kTimedBytes ? static_cast<std::uint32_t>(common::now_ns() - since_ns) : 0;
        }
    }
    in_->data.tail.store(tail + 1, kRelease);
    if (in_->data.head.load(kAcquire) - tail >= kDataSlots) {
        core_.ring_doorbell();
    }
    if (receive != nullptr && corrupt) {
        core_.finished(receive, Status::kCorrupt, "the shared memory holds something else than was sent");
    } else if (receive != nullptr && chunk.last != 0) {
        core_.finished(receive, Status::kDone);
    }
    return true;
}

bool ShmLane::progress() {
    bool moved = read_mail() | flush_mail();
    for (int i = 0; i < kChunksAtOnce; ++i) {
        moved |= write_chunk();
        moved |= read_chunk();
    }
    return moved;
}

}  // namespace megatronapp::rdma
