// The receiver's side.
#include <cstring>
#include <stdexcept>
#include <string>

#include "api/errors.h"
#include "lanes/cuda_ipc.h"
#include "lanes/cuda_ipc_message.h"

namespace megatronapp::rdma {

void CudaIpcLane::expect(const OperationPtr& operation, Message& message) {
    enter();
    const std::optional<std::size_t> slot = receive_slots_.take();
    if (!slot) {
        std::uint64_t bytes = 0;
        for (const auto& [id, open] : receives_) {
            bytes += open.operation->what.bytes;
        }
        throw Exhausted(std::to_string(receives_.size()) + " receives of GPU memory are open, all that may be (" +
                        std::to_string(bytes) + " bytes): wait for some of them first");
    }
    Receive& receive = receives_[operation->id];
    receive.slot = *slot;
    receive.operation = operation;
    try {
        prepare(receive, message);
    } catch (...) {
        release_place(receive);
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
    const OwnFlags::Pair own = landed_.next(receive.slot);
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
    release_place(receive);
    events_->give_back(*receive.operation);
    receive.operation->in_use.store(false, std::memory_order_release);
}

void CudaIpcLane::release_place(Receive& receive) {
    if (receive.block != nullptr) {
        pool_.give_back(receive.block);
    }
    receive_slots_.give_back(receive.slot);
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
        stream_waits_->add(operation->flag);
        return land(found->second, stream);
    }
    if (!sent_.take(*operation)) {  // a receive has its flag
        throw Exhausted("streams wait for " + std::to_string(kFlagSlots) +
                        " sends already, all that may be: let their receivers post first");
    }
    if (!reached(operation->flag)) {
        stream_waits_->add(operation->flag);
        wait(operation->flag, stream);
    }
}

// ---- what comes from host memory

CudaAddress CudaIpcLane::block_of(const Operation& receive) const {
    const Block* block = receives_.at(receive.id).block;
    return block == nullptr ? 0 : block->address;
}

bool CudaIpcLane::may_write(const Operation& receive) const {
    const Receive& found = receives_.at(receive.id);
    return reached(in_.ready(found.slot, found.value));
}

void CudaIpcLane::delivered(const Operation& receive) {
    const Receive& found = receives_.at(receive.id);
    reach(in_.done(found.slot, found.value));
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
        if (!receive.landing && receive.operation->pending() && reached(in_.done(receive.slot, receive.value)) &&
            !stream_waits_->driver_may_block()) {
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

}  // namespace megatronapp::rdma
