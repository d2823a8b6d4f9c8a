#include "frontiers.h"

#include <algorithm>
#include <stdexcept>

#include "common/clock.h"

namespace megatronapp::scan {

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

Frontiers::Track& Frontiers::at(std::uint32_t index) {
    if (index >= tracks_.size()) {
        throw std::out_of_range("no such track");
    }
    return tracks_[index];
}

std::uint32_t Frontiers::track(std::uint32_t communicator, std::int32_t peer, bool sending) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::find_if(tracks_.begin(), tracks_.end(), [&](const Track& track) {
        return track.communicator == communicator && track.peer == peer && track.sending == sending;
    });
    if (found != tracks_.end()) {
        return static_cast<std::uint32_t>(found - tracks_.begin());
    }
    const auto index = static_cast<std::uint32_t>(tracks_.size());
    tracks_.push_back({communicator, peer, sending, 0, 0, 0, 0, 0, {}, {}});
    publish(index);
    if (index < most_) {
        header_.entries.store(index + 1, std::memory_order_release);
    }
    return index;
}

void Frontiers::check(std::uint32_t track) {
    const std::lock_guard<std::mutex> lock(mutex_);
    at(track);
}

std::uint64_t Frontiers::enqueue(
    std::uint32_t index, std::int32_t operation, std::uint64_t step, std::uint64_t message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Track& track = at(index);
    track.enqueued_at_ns = common::now_ns();
    track.newest = {++track.enqueued, step, message, track.enqueued_at_ns, operation};
    track.open.push_back(track.newest);
    publish(index);
    return track.enqueued;
}

void Frontiers::started(std::uint32_t index) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Track& track = at(index);
    track.started = std::min(track.started + 1, track.enqueued);
    publish(index);
}

void Frontiers::complete(std::uint32_t index, std::uint64_t ticket) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Track& track = at(index);
    const auto older = [](const Open& open, std::uint64_t than) { return open.ticket < than; };
    const auto found = std::lower_bound(track.open.begin(), track.open.end(), ticket, older);
    if (found == track.open.end() || found->ticket != ticket) {
        return;
    }
    track.open.erase(found);
    track.completed = track.open.empty() ? track.enqueued : track.open.front().ticket - 1;
    track.started = std::max(track.started, track.completed);
    track.completed_at_ns = common::now_ns();
    publish(index);
}

void Frontiers::publish(std::uint32_t index) {
    if (index >= most_) {
        return;
    }
    const Track& track = tracks_[index];
    common::FrontierEntry& entry = entries_[index];
    common::write_locked(entry.sequence, [&] {
        entry.communicator.store(track.communicator, kRelaxed);
        entry.peer.store(track.peer, kRelaxed);
        entry.sending.store(track.sending ? 1 : 0, kRelaxed);
        // A collective has no identity beyond its place in the order: the oldest tells how it was called, or the newest
        // where all are through.
        const bool collective = track.peer < 0;
        const std::size_t open = std::min(track.open.size(), collective ? 1 : track.open.size());
        const bool through = collective && open == 0 && track.enqueued > 0;
        const auto shown = [&](std::size_t i) -> const Open& { return through ? track.newest : track.open[i]; };
        const std::size_t count = through ? 1 : std::min(open, common::kOpenMessages);
        entry.operation.store(count == 0 ? -1 : shown(0).operation, kRelaxed);
        entry.enqueued.store(track.enqueued, kRelaxed);
        entry.started.store(track.started, kRelaxed);
        entry.completed.store(track.completed, kRelaxed);
        entry.enqueued_at_ns.store(track.enqueued_at_ns, kRelaxed);
        entry.completed_at_ns.store(track.completed_at_ns, kRelaxed);
        entry.open.store(static_cast<std::uint32_t>(open), kRelaxed);
        for (std::size_t i = 0; i < count; ++i) {
            entry.messages[i].step.store(shown(i).step, kRelaxed);
            entry.messages[i].message.store(shown(i).message, kRelaxed);
            entry.messages[i].posted_at_ns.store(shown(i).posted_at_ns, kRelaxed);
        }
    });
}

}  // namespace megatronapp::scan
