// GPU memory between hosts: through page-locked host memory, over the lane of host memory.
//
// A tensor is copied into a buffer of the pool once its producer is done, sent, and copied out of the receiver's buffer.
// The host waits for such messages, no stream does: what the GPU has to do for them is known only when they are there.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "drivers/cuda.h"
#include "lanes/lane.h"

namespace megatronapp::rdma {

// Host memory that the copy engine reaches, kept for the next message.
class StagingPool {
public:
    explicit StagingPool(const CudaDriver& driver) : driver_(driver) {}
    ~StagingPool();
    StagingPool(const StagingPool&) = delete;
    StagingPool& operator=(const StagingPool&) = delete;

    // Throws std::runtime_error when there is no memory for it.
    char* take(std::size_t bytes);
    void give_back(char* memory);

private:
    static constexpr std::size_t kLeastBytes = 1 << 20;
    struct Buffer {
        char* memory;
        std::size_t bytes;
        bool in_use;
    };
    const CudaDriver& driver_;
    std::vector<Buffer> buffers_;
};

class StagedLane final : public Lane {
public:
    // Over `host`, which outlives it, with the context that is current on the calling thread.
    StagedLane(Matcher& core, Lane& host);
    ~StagedLane() override;

    const char* name() const override { return "staged"; }
    void posted(Operation& send) override;
    void expect(const OperationPtr& receive, Message& message) override;
    void start(const OperationPtr& send, const Message& ready) override;
    bool progress() override;
    bool polled() const override { return !moving_.empty(); }
    void release() override { abandoned_ = true; }
    void ended(Operation& operation) override;

    // The host's lane has brought it: it ends when it is in the GPU's memory. False: it is there already.
    bool lands(const OperationPtr& receive);
    // Sends that are not copied out yet.
    bool holds_back() const;

private:
    enum class Where { kUnderWay, kDue, kCopying, kThere };
    // An operation between the GPU's memory and the host's.
    struct Staging {
        Operation* operation;  // ends before this does
        char* device;
        char* host;
        Where where;
        OperationPtr matched;  // a send, before it is copied
        Message ready;
    };

    Staging& stage(Operation& operation, Where where);
    bool advance(Staging& staging);
    void there(Staging& staging);
    void enter() { driver_.context_set(context_); }

    Matcher& core_;
    Lane& host_;
    const CudaDriver& driver_;
    void* context_ = nullptr;
    void* stream_ = nullptr;
    bool abandoned_ = false;
    std::unique_ptr<StagingPool> pool_;
    std::vector<void*> events_;
    std::unordered_map<std::uint64_t, Staging> staged_;  // by the operation's id
    std::vector<std::uint64_t> moving_;  // those that are due or copied
};

}  // namespace megatronapp::rdma
