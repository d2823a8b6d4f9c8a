// A way for messages between two ranks. The core matches; a lane moves.
#pragma once

#include "api/operation.h"

namespace megatronapp::rdma {

// What a lane tells the core. Called with the engine's lock held.
class Matcher {
public:
    virtual ~Matcher() = default;
    // The receive that waits for data; null when there is none (any more).
    virtual OperationPtr receiving(std::uint64_t receive) = 0;
    virtual void finished(const OperationPtr& operation, Status status, std::string reason = {}) = 0;
    // A send that was to be stopped is: nothing of it is under way any more.
    virtual void stopped(const OperationPtr& send) = 0;
    // What came into the host memory of a receive is in the GPU's.
    virtual void staged(const OperationPtr& receive) = 0;
    // To the peer's core.
    virtual void tell(const Message& message) = 0;
    // Something was put into memory that the peer shares.
    virtual void ring_doorbell() = 0;
    // From the peer's core, by whichever way it came.
    virtual void on_control(const Message& message) = 0;
};

enum class Stop { kStopped, kSoon, kTooLate };

class Lane {
public:
    virtual ~Lane() = default;
    virtual const char* name() const = 0;

    // A send is posted.
    virtual void posted(Operation&) {}
    // A receive is posted: get its buffer ready, and tell the sender's lane in `message.lane` what it must know.
    virtual void expect(const OperationPtr&, Message&) {}
    // A send is matched by the receiver's ready message: move it, then finish it.
    virtual void start(const OperationPtr& send, const Message& ready) = 0;
    // Take back a send that was started, as if it never was; kSoon: the core is told by `stopped`, unless it ends first.
    virtual Stop stop(const OperationPtr&) { return Stop::kTooLate; }
    // Whether work of the program's own on the GPU keeps a started send from moving.
    virtual bool held_up(const Operation&) const { return false; }
    // A bounded piece of work. True when anything moved.
    virtual bool progress() = 0;
    // True while only progress() can find out what has ended.
    virtual bool polled() const { return false; }
    // Whether something beyond this process may write into a buffer whose operation has ended badly.
    virtual bool writes_late() const { return false; }
    // The peer is gone or the engine stops: let everything go that waits, streams too.
    virtual void release() {}
    // After the end of all messages: whether the GPU is through with them, too. Calls nothing of the core.
    virtual bool settle() { return true; }
    // An operation has ended, well or not: what waits for it must not wait any more.
    virtual void ended(Operation&) {}
};

}  // namespace megatronapp::rdma
