#include "resolver.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>

namespace megatronapp::scan {

namespace {

// How often the device is asked. Nobody waits for the answer, and each time costs the host some microseconds and takes
// the driver's lock: not right after a step, where the device is idle until the training thread has work for it.
constexpr auto kPoll = std::chrono::milliseconds(100);
constexpr auto kClosingPoll = std::chrono::milliseconds(2);
// How long a thread that was told to stop may take for what it is at.
constexpr auto kStop = std::chrono::milliseconds(500);
// Steps that wait for the device; the rows of those beyond are lost.
constexpr std::size_t kMostChunks = 64;

// Signals belong to the interpreter's threads.
std::unique_ptr<std::thread> start_without_signals(std::function<void()> function) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    auto thread = std::make_unique<std::thread>(std::move(function));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
}

}  // namespace

Resolver::Resolver(
    common::RingWriter ring, Cuda* cuda, Frontiers& frontiers, std::function<void(std::unique_ptr<Chunk>)> recycle,
    std::function<void(std::uint64_t)> lose, std::function<void()> polled)
    : ring_(ring),
      cuda_(cuda),
      frontiers_(frontiers),
      recycle_(std::move(recycle)),
      lose_(std::move(lose)),
      polled_(std::move(polled)) {
    thread_ = start_without_signals([this] { run(); });
    pthread_setname_np(thread_->native_handle(), "scan-resolver");
}

Resolver::~Resolver() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
        changed_.notify_all();
    }
    if (thread_) {
        thread_->join();
    }
}

std::unique_ptr<Chunk> Resolver::put(std::unique_ptr<Chunk> chunk) {
    std::size_t lost = 0;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (closing_ || ended_) {
            return chunk;
        }
        if (chunks_.size() >= kMostChunks) {
            lost = chunk->rows.size();
            chunk->rows.clear();
        }
        chunks_.push_back(std::move(chunk));
    }
    if (cuda_ == nullptr) {
        changed_.notify_all();  // with a device it is a poll that takes the chunk
    }
    if (lost != 0) {
        lose_(lost);
    }
    return nullptr;
}

void Resolver::watch(Stream stream, Event event, std::uint32_t track, std::uint64_t ticket) {
    const std::lock_guard<std::mutex> lock(mutex_);
    incoming_.push_back({stream, {event, track, ticket}});
}

bool Resolver::close(double timeout_seconds) {
    std::unique_lock<std::mutex> lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    const auto over = [this] { return ended_; };
    bool drained = over_.wait_for(lock, std::chrono::duration<double>(timeout_seconds), over);
    if (!drained) {
        stopping_ = true;
        changed_.notify_all();
        over_.wait_for(lock, kStop, over);
    }
    return drained && chunks_.empty();
}

bool Resolver::ended() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ended_;
}

void Resolver::run() {
    try {
        if (cuda_ != nullptr) {
            cuda_->enter();
        }
    } catch (const std::exception&) {
        device_failed_ = true;
    }
    while (wait_for_work()) {
        work();
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    over_.notify_all();
}

bool Resolver::wait_for_work() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (cuda_ != nullptr) {
        const bool closing = closing_;
        changed_.wait_for(lock, closing ? kClosingPoll : kPoll, [&] { return stopping_ || closing_ != closing; });
    } else {
        changed_.wait(lock, [this] { return stopping_ || closing_ || !chunks_.empty(); });
    }
    return !stopping_ && !(closing_ && chunks_.empty());
}

void Resolver::work() {
    poll_watches();
    tell_poll();
    while (Chunk* chunk = front()) {
        if (!resolve(*chunk)) {
            return;
        }
        write(*chunk);
        std::unique_ptr<Chunk> done;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            done = std::move(chunks_.front());
            chunks_.pop_front();
        }
        recycle_(std::move(done));
    }
}

Chunk* Resolver::front() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stopping_ || chunks_.empty() ? nullptr : chunks_.front().get();
}

bool Resolver::resolve(Chunk& chunk) {
    try {
        if (!device_failed_) {
            return ready(chunk) && place(chunk);
        }
    } catch (const std::exception&) {
        device_failed_ = true;
    }
    lose_(chunk.rows.size());
    chunk.rows.clear();
    return true;
}

bool Resolver::ready(const Chunk& chunk) const {
    return std::all_of(chunk.newest.begin(), chunk.newest.end(), [this](const std::pair<Stream, Event>& newest) {
        return cuda_->done(newest.second);
    });
}

bool Resolver::place(Chunk& chunk) {
    Reference reference{};
    if (cuda_ != nullptr) {
        reference = cuda_->reference();
        chunk.end.reference_ns = reference.placed.host_ns;
        chunk.end.reference_error_ns = reference.placed.error_ns;
    }
    times_.clear();
    for (const Mark& mark : chunk.marks) {
        if (mark.event == nullptr) {
            times_.push_back(mark.host_ns);
            continue;
        }
        const auto elapsed_ns = cuda_->elapsed_ns(reference.event, mark.event);
        if (!elapsed_ns) {
            return false;  // a stream that was given up, and its number given to another
        }
        times_.push_back(reference.placed.after(*elapsed_ns));
    }
    return true;
}

void Resolver::write(const Chunk& chunk) {
    const std::size_t most = (ring_.most_payload() - sizeof(common::RowsHeader)) / (kColumns * sizeof(std::int64_t));
    for (std::size_t first = 0; first < chunk.rows.size(); first += most) {
        write_rows(chunk, first, std::min(most, chunk.rows.size() - first));
    }
    common::StepEnd end = chunk.end;
    end.rows = static_cast<std::uint32_t>(chunk.rows.size());
    std::memcpy(ring_.claim(common::RecordKind::kStepEnd, sizeof end), &end, sizeof end);
    ring_.publish();
}

void Resolver::write_rows(const Chunk& chunk, std::size_t first, std::size_t count) {
    const common::RowsHeader header{
        chunk.end.step, static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(kColumns)};
    char* record =
        ring_.claim(common::RecordKind::kRows, sizeof header + kColumns * count * sizeof(std::int64_t));
    std::memcpy(record, &header, sizeof header);
    auto* columns = reinterpret_cast<std::int64_t*>(record + sizeof header);
    for (std::size_t i = 0; i < count; ++i) {
        const Row& row = chunk.rows[first + i];
        const Mark& begin = chunk.marks[row.begin];
        const bool streamed = begin.event != nullptr;
        const std::array<std::int64_t, kColumns> values = {
            row.name, row.first, row.blocked, row.microbatch, row.chunk, row.layer, row.communicator, row.peer,
            row.sequence, row.bytes, row.tokens, row.length_squares, row.stream, row.message, times_[row.issue],
            times_[row.begin], times_[row.end], streamed ? 0 : chunk.marks[row.end].cpu_ns - begin.cpu_ns,
            streamed ? chunk.marks[row.issue].host_ns : 0,
            streamed ? times_[row.end] - chunk.marks[row.end].host_ns : 0};
        for (std::size_t column = 0; column < kColumns; ++column) {
            columns[column * count + i] = values[column];
        }
    }
    ring_.publish();
}

void Resolver::tell_poll() {
    try {
        if (cuda_ != nullptr && !device_failed_) {
            polled_();
        }
    } catch (const std::exception&) {
        device_failed_ = true;
    }
}

void Resolver::take_watches() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [stream, watch] : incoming_) {
        const auto of_stream = [stream = stream](const WatchedStream& watched) { return watched.stream == stream; };
        auto found = std::find_if(watched_.begin(), watched_.end(), of_stream);
        if (found == watched_.end()) {
            found = watched_.insert(found, {stream, {}});
        }
        found->watches.push_back(watch);
    }
    incoming_.clear();
}

void Resolver::poll_watches() {
    take_watches();
    try {
        for (WatchedStream& watched : watched_) {
            poll_stream(watched);
        }
    } catch (const std::exception&) {
        device_failed_ = true;
        watched_.clear();
    }
}

void Resolver::poll_stream(WatchedStream& watched) {
    auto& watches = watched.watches;
    const auto open = std::partition_point(
        watches.begin(), watches.end(), [this](const Watch& watch) { return cuda_->done(watch.event); });
    std::for_each(watches.begin(), open, [this](const Watch& watch) {
        frontiers_.complete(watch.track, watch.ticket);
    });
    watches.erase(watches.begin(), open);
}

}  // namespace megatronapp::scan
