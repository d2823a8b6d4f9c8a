// GPU memory on one host: the sender's copy engine writes straight into the receiver's buffer, in stream order.
//
// The receiver's stream writes `ready`; the sender's copy waits for it and for the work that fills the buffer, copies,
// and writes `done`, for which the receiver's stream waits. No host waits and no kernel runs. All flags are in host
// memory that both processes and both GPUs see, so that a host can poll them, and can let a stream go whose peer died.
#pragma once

#include <array>
#include <deque>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "drivers/cuda.h"
#include "lanes/lane.h"
#include "lanes/segment.h"

namespace megatronapp::rdma {

// Flags as streams see them.
class MappedFlags {
public:
    // `count` flags. Throws std::runtime_error when the driver refuses to map the memory.
    explicit MappedFlags(StreamFlags* flags, std::size_t count);
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

// Which slots of a table are free, and how often each was used: its flags count up, and are never reset.
class FlagSlots {
public:
    struct Taken {
        std::size_t slot;
        std::uint32_t value;
    };
    FlagSlots();
    // Throws std::runtime_error when all are taken.
    Taken take();
    void give_back(std::size_t slot) { free_.push_back(slot); }

private:
    std::deque<std::size_t> free_;
    std::array<std::uint32_t, kFlagSlots> values_{};
};

// The peer's allocations, mapped into this process.
class OpenedMemory {
public:
    explicit OpenedMemory(const CudaDriver& driver) : driver_(driver) {}
    ~OpenedMemory();
    CudaAddress open(std::uint64_t buffer, const CudaIpcHandle& handle);
    // Closes what was not used for longest, down to a limit; only while no copy runs.
    void trim();

private:
    struct Mapping {
        CudaAddress address;
        std::list<std::uint64_t>::iterator place;
    };
    const CudaDriver& driver_;
    std::unordered_map<std::uint64_t, Mapping> mappings_;
    std::list<std::uint64_t> by_use_;
};

// This process's allocations, as others open them. The driver never gives a buffer's number again.
class OwnMemory {
public:
    struct Place {
        CudaIpcHandle handle;
        std::uint64_t buffer;
        std::uint64_t offset;
    };
    explicit OwnMemory(const CudaDriver& driver) : driver_(driver) {}
    // Throws std::runtime_error for memory that no other process can open.
    Place find(CudaAddress address);

private:
    const CudaDriver& driver_;
    std::unordered_map<std::uint64_t, CudaIpcHandle> handles_;  // by buffer
};

class CudaIpcLane final : public Lane {
public:
    // With the context that is current on the calling thread.
    CudaIpcLane(Matcher& core, const Segment& inbound, const Segment& outbound);
    ~CudaIpcLane() override;

    const char* name() const override { return "cuda_ipc"; }
    void posted(Operation& send) override;
    void expect(const OperationPtr& receive, Message& message) override;
    void start(const OperationPtr& send, const Message& ready) override;
    bool progress() override;
    bool polled() const override { return !receiving_.empty() || !waiting_.empty() || !moving_.empty(); }
    void release() override;
    void ended(Operation& operation) override;

    static bool reached(const Flag& flag);
    void wait(const Flag& flag, void* stream);
    // Matched, but not given to the GPU.
    bool holds_back() const { return !waiting_.empty(); }

private:
    struct Matched {
        OperationPtr send;
        CudaAddress to = 0;
        Flag ready, done;
        std::uint64_t receive_stream = 0;
    };
    // One of a few streams, so that a message that waits on the GPU does not hold up another.
    struct CopyStream {
        void* stream = nullptr;
        Matched last;  // launched while it might not run yet; no send: none such
        bool blocked() const { return last.send != nullptr && last.send->pending(); }
    };

    void enter();
    bool try_launch(const Matched& matched);
    CopyStream* stream_for(const Matched& matched, bool runs_at_once);
    static bool comes_after(const Matched& matched, const Matched& earlier);
    void* take_event();
    static void reach(const Flag& flag);
    template <typename Operations>
    bool finish_reached(Operations& operations);

    Matcher& core_;
    const CudaDriver& driver_;
    void* context_ = nullptr;
    MappedFlags in_, out_;
    std::unique_ptr<StreamFlags[]> sent_memory_;
    std::unique_ptr<MappedFlags> sent_;
    FlagSlots receive_slots_, send_slots_;
    std::unordered_map<std::uint64_t, std::size_t> slots_;  // by the operation's id
    OwnMemory own_;
    OpenedMemory opened_;
    std::vector<CopyStream> streams_;
    std::size_t next_stream_ = 0;
    std::vector<void*> events_;
    std::deque<Matched> waiting_;     // matched, not launched
    std::vector<Matched> launched_;   // kept to let their streams go
    std::vector<OperationPtr> receiving_, moving_;
};

}  // namespace megatronapp::rdma
