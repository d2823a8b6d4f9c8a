// Host memory on one host: the sender copies into a ring, the receiver out of it into its buffer. Also the way of the
// cores' own messages between these two ranks.
//
// A ring has one writer and one reader. The writer fills a slot, then moves the head; the reader sees it, copies, and
// moves the tail. Nobody waits inside: a full ring leaves the message in the sender's queue until the next poll.
// Cursors are stored and read in one order for all (seq_cst): a head that was moved must be seen before "the reader
// sleeps" is read, or nobody rings. A writer that waits for room is rung for alone, so that a reader that has moved the
// tail looks whether the ring was full until then; and a reader in whose mail is nothing that anybody waits for is not
// woken for it.
#pragma once

#include <array>
#include <deque>

#include "lanes/choice.h"
#include "lanes/lane.h"
#include "lanes/segment.h"
#include "lanes/send_queue.h"

namespace megatronapp::rdma {

class ShmLane final : public Lane {
public:
    ShmLane(Matcher& core, const Segment& inbound, const Segment& outbound, bool checksum, std::size_t most_bytes)
        : core_(core), in_(inbound), out_(outbound), checksum_(checksum), most_bytes_(most_bytes) {}

    const char* name() const override { return "shm"; }
    void start(const OperationPtr& send, const Message& ready) override;
    bool progress() override;
    Stop stop(const OperationPtr& send) override;

    // A message of the core, in order. Not `urgent`: a peer that sleeps need not be woken for it.
    void post(const Message& message, bool urgent);
    bool read_mail();
    // The peer waits for something that was posted as not urgent.
    void hurry();

private:
    bool flush_mail();
    bool write_chunk();
    bool read_chunk();
    void learn_cost(std::size_t slot);

    Matcher& core_;
    const Segment& in_;
    const Segment& out_;
    bool checksum_;
    std::size_t most_bytes_;  // of one chunk
    std::deque<Message> outbox_;
    bool urgent_ = false;  // something in it is, or was
    SendQueue sending_;
    // What was written into each slot last, until it is known how long its reading took.
    struct Written {
        Kernel kernel;
        std::size_t bytes = 0;
        std::int64_t ns;
    };
    std::array<Written, kDataSlots> written_{};
    KernelChoice choice_;
};

}  // namespace megatronapp::rdma
