// Flags in host memory that streams write and wait for, and that a host may write in their place.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>

#include "api/operation.h"
#include "drivers/cuda.h"
#include "lanes/segment.h"

namespace megatronapp::rdma {

// Whether the flag has its value, or one of a later use.
inline bool reached(const Flag& flag) {
    return static_cast<std::int32_t>(flag.host->load(std::memory_order_acquire) - flag.value) >= 0;
}
// Writes it from the host: streams can't be stopped from waiting.
void reach(const Flag& flag);

// A table of kFlagSlots flags as streams see them.
class MappedFlags {
public:
    // Throws std::runtime_error when the driver refuses to map the memory.
    explicit MappedFlags(StreamFlags* flags);
    ~MappedFlags();
    MappedFlags(const MappedFlags&) = delete;
    MappedFlags& operator=(const MappedFlags&) = delete;

    Flag ready(std::size_t slot, std::uint32_t value) const { return at(&flags_[slot].ready, value); }
    Flag done(std::size_t slot, std::uint32_t value) const { return at(&flags_[slot].done, value); }

private:
    Flag at(std::atomic<std::uint32_t>* flag, std::uint32_t value) const;

    StreamFlags* flags_;
    CudaAddress device_ = 0;
};

// This process' own flags. The program's streams wait for them, which may come to it long after the engine is closed: so
// the memory is never given up, but used again, and the values only count up.
class OwnFlags {
public:
    // With the context that is current on the calling thread, whose `context` is.
    explicit OwnFlags(void* context);
    ~OwnFlags();
    OwnFlags(const OwnFlags&) = delete;
    OwnFlags& operator=(const OwnFlags&) = delete;

    // The flags of a slot for its next use.
    struct Pair {
        Flag ready, done;
    };
    Pair next(std::size_t slot);

private:
    struct Table;
    std::unique_ptr<Table> table_;
};

// Which slots of a table are free.
class FlagSlots {
public:
    FlagSlots();
    std::optional<std::size_t> take();
    void give_back(std::size_t slot) { free_.push_back(slot); }

private:
    std::deque<std::size_t> free_;
};

// Flags that tell streams of the end of an operation, each taken when it is first needed.
class OperationFlags {
public:
    // As OwnFlags.
    explicit OperationFlags(void* context) : flags_(context) {}

    // Sets the operation's flag. False: all are taken.
    bool take(Operation& operation);
    // The other flag of such an operation.
    Flag ready(const Operation& operation) const;
    // It has ended: streams go on.
    void give_back(Operation& operation);

private:
    OwnFlags flags_;
    FlagSlots slots_;
    struct Slot {
        std::size_t slot;
        Flag ready;
    };
    std::unordered_map<std::uint64_t, Slot> slots_of_;  // by the operation's id
};

}  // namespace megatronapp::rdma
