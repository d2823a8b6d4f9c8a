// What NCCL gets for an event, and hands back. It is no pointer: NCCL may name what is long over, something of another
// process, or nothing, and all of that has to be told from what is there.
#pragma once

#include <cstdint>
#include <cstring>

namespace megatronapp::nccl {

enum class HandleKind : std::uint64_t { kNone = 0, kCommunicator, kOperation, kChannel, kProxyOperation, kProxyStep };

struct Handle {
    HandleKind kind = HandleKind::kNone;
    std::uint32_t channel = 0;     // 8 bits
    std::uint32_t index = 0;       // 16 bits
    std::uint64_t generation = 0;  // 36 bits

    static constexpr std::uint32_t kMostIndex = 0xffff;
    static constexpr std::uint64_t kGenerations = std::uint64_t{1} << 36;

    void* pack() const {
        const std::uint64_t value = static_cast<std::uint64_t>(kind) | std::uint64_t{channel & 0xff} << 3 |
                                    std::uint64_t{index & kMostIndex} << 11 | (generation % kGenerations) << 27;
        return reinterpret_cast<void*>(value);
    }

    static Handle of(const void* packed) {
        const auto value = reinterpret_cast<std::uint64_t>(packed);
        return {
            static_cast<HandleKind>(value & 7), static_cast<std::uint32_t>(value >> 3 & 0xff),
            static_cast<std::uint32_t>(value >> 11 & kMostIndex), value >> 27};
    }
};

// Slots of fixed number, each of which counts its users: what is named is there if the count is the same.
template <typename Value>
class Slots {
public:
    explicit Slots(std::uint32_t size) : slots_(new Slot[size]), size_(size) {
        for (std::uint32_t i = 0; i < size; ++i) {
            slots_[i].next = i + 1;
        }
    }
    ~Slots() { delete[] slots_; }
    Slots(const Slots&) = delete;
    Slots& operator=(const Slots&) = delete;

    // Null when all are taken.
    Value* take(std::uint32_t& index) {
        if (free_ == size_) {
            return nullptr;
        }
        index = free_;
        Slot& slot = slots_[index];
        free_ = slot.next;
        slot.value = Value();
        slot.used = true;
        return &slot.value;
    }

    void give_back(std::uint32_t index) {
        Slot& slot = slots_[index];
        slot.used = false;
        slot.generation = (slot.generation + 1) % Handle::kGenerations;
        slot.next = free_;
        free_ = index;
    }

    Handle handle(HandleKind kind, std::uint32_t index) const { return {kind, 0, index, slots_[index].generation}; }

    // Null for one that is not there, or no more.
    Value* find(const Handle& handle) {
        if (handle.index >= size_ || !slots_[handle.index].used ||
            slots_[handle.index].generation != handle.generation) {
            return nullptr;
        }
        return &slots_[handle.index].value;
    }
    Value& operator[](std::uint32_t index) { return slots_[index].value; }

private:
    struct Slot {
        Value value;
        std::uint64_t generation = 1;
        std::uint32_t next = 0;
        bool used = false;
    };

    Slot* slots_;
    std::uint32_t size_, free_ = 0;
};

}  // namespace megatronapp::nccl
