#include "core/lanes.h"

#include <algorithm>
#include <cstring>

namespace megatronapp::nccl {

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
using common::write_locked;

template <typename Value>
void raise(common::Field<Value>& field, Value value) {
    field.store(std::max(field.load(kRelaxed), value), kRelaxed);
}

void store(common::Field<std::uint64_t> (&words)[kDescriptionWords], const Enqueued& operation) {
    std::uint64_t copy[kDescriptionWords];
    std::memcpy(copy, &operation, sizeof copy);
    for (std::size_t i = 0; i < kDescriptionWords; ++i) {
        words[i].store(copy[i], kRelaxed);
    }
}

}  // namespace

std::uint32_t Lanes::add(const LaneOwner& owner) {
    if (used_ == size_) {
        return size_;
    }
    Lane& entry = entries_[used_];
    std::uint64_t name[4] = {0, 0, 0, 0};
    std::memcpy(name, owner.name.data(), std::min(owner.name.size(), sizeof name));
    write_locked(entry.lock, [&] {
        entry.communicator.store(owner.communicator, kRelaxed);
        entry.ranks.store(owner.ranks, kRelaxed);
        entry.rank.store(owner.rank, kRelaxed);
        entry.peer.store(owner.peer, kRelaxed);
        entry.direction.store(static_cast<std::uint32_t>(owner.direction), kRelaxed);
        for (std::size_t i = 0; i < 4; ++i) {
            entry.name[i].store(name[i], kRelaxed);
        }
    });
    header_.entries.store(++used_, std::memory_order_release);
    return used_ - 1;
}

void Lanes::enqueue(const Enqueued& operation) {
    Lane& entry = entries_[operation.lane];
    write_locked(entry.lock, [&] {
        if (entry.enqueued.load(kRelaxed) == entry.completed.load(kRelaxed)) {
            store(entry.oldest, operation);
        }
        store(entry.newest, operation);
        entry.enqueued.store(operation.number, kRelaxed);
        entry.enqueued_ns.store(operation.at_ns, kRelaxed);
    });
}

void Lanes::start(std::uint32_t lane, std::uint64_t number, std::int64_t at_ns) {
    Lane& entry = entries_[lane];
    if (number <= entry.started.load(kRelaxed)) {
        return;
    }
    write_locked(entry.lock, [&] {
        entry.started.store(number, kRelaxed);
        entry.started_ns.store(at_ns, kRelaxed);
    });
}

void Lanes::complete(std::uint32_t lane, std::uint64_t number, std::int64_t at_ns, const Enqueued* oldest) {
    Lane& entry = entries_[lane];
    if (number <= entry.completed.load(kRelaxed)) {
        return;
    }
    write_locked(entry.lock, [&] {
        raise(entry.started, number);
        entry.completed.store(number, kRelaxed);
        entry.completed_ns.store(at_ns, kRelaxed);
        if (oldest != nullptr) {
            store(entry.oldest, *oldest);
        }
    });
}

void Lanes::lose(std::uint32_t lane) {
    Lane& entry = entries_[lane];
    write_locked(entry.lock, [&] { entry.lost.fetch_add(1, kRelaxed); });
}

void Lanes::close(std::uint32_t lane) {
    Lane& entry = entries_[lane];
    write_locked(entry.lock, [&] { entry.closed.store(1, kRelaxed); });
}

void Lanes::switch_on() {
    for (std::uint32_t i = 0; i < used_; ++i) {
        Lane& entry = entries_[i];
        write_locked(entry.lock, [&] { entry.switches.fetch_add(1, kRelaxed); });
    }
}

}  // namespace megatronapp::nccl
