#include "recorder.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "common/clock.h"
#include "common/frame.h"
#include "forks.h"

namespace megatronapp::scan {

namespace {

using Lock = std::lock_guard<std::mutex>;

constexpr std::size_t kFirstRows = 1024;
constexpr std::size_t kFirstEvents = 4096;
// Of one chunk: where no step ends, memory must not grow.
constexpr std::size_t kMostRows = 1 << 18;
constexpr std::size_t kMostMarks = 1 << 18;
constexpr std::uint32_t kFrontierEntries = 512;
constexpr int kActivityBits = 48;
constexpr auto kRelaxed = std::memory_order_relaxed;

std::unique_ptr<Chunk> new_chunk() {
    auto chunk = std::make_unique<Chunk>();
    chunk->rows.reserve(kFirstRows);
    chunk->marks.reserve(2 * kFirstRows);
    return chunk;
}

void fill(Row& row, const Operation& operation) {
    row.communicator = operation.communicator;
    row.peer = operation.peer;
    row.sequence = operation.sequence;
    row.bytes = operation.bytes;
    row.stream = operation.stream;
    row.message = operation.message;
}

}  // namespace

Recorder::Recorder(
    std::string on_host, std::string blocking, std::unique_ptr<Cuda> cuda, CurrentStream current_stream,
    std::size_t ring_bytes, std::size_t bulk_bytes)
    : on_host_(std::move(on_host)),
      blocking_(std::move(blocking)),
      segment_(kFrontierEntries, ring_bytes, static_cast<std::uint32_t>(syscall(SYS_gettid)), bulk_bytes),
      state_(segment_.state()),
      frontiers_(segment_.frontiers(), segment_.entries(), kFrontierEntries),
      cuda_(std::move(cuda)),
      current_stream_(std::move(current_stream)),
      chunk_now_(new_chunk()),
      resolver_(
          common::RingWriter(segment_.ring(), segment_.ring_data(), ring_bytes), cuda_.get(), frontiers_,
          [this](std::unique_ptr<Chunk> chunk) { recycle(std::move(chunk)); },
          [this](std::uint64_t spans) {
              const Lock lock(mutex_);
              lose(spans);
          },
          [this] { tell_unpassed_mark(); }) {
    if (bulk_bytes != 0) {
        bulk_.emplace(segment_.bulk(), segment_.bulk_data(), bulk_bytes);
    }
    open_.reserve(64);
    for (std::size_t i = 0; cuda_ && i < kFirstEvents; ++i) {
        if (Event event = cuda_->make()) {
            events_.push_back(event);
        }
    }
    enter_forks(*this);
}

Recorder::~Recorder() {
    leave_forks(*this);
    resolver_.close(0);
    for (Event event : events_) {
        cuda_->destroy(event);
    }
}

// ---- marks

Mark Recorder::take_mark(bool on_host, Stream stream) {
    const std::int64_t host_ns = common::now_ns();
    if (!cuda_ || on_host) {
        return {host_ns, common::thread_cpu_ns(), nullptr, nullptr};
    }
    Event event = nullptr;
    if (events_.empty()) {
        event = cuda_->make();
    } else {
        event = events_.back();
        events_.pop_back();
    }
    if (event != nullptr && !cuda_->record(event, stream)) {
        events_.push_back(event);
        event = nullptr;
    }
    return {host_ns, 0, event, stream};
}

MarkId Recorder::append(const Mark& mark) {
    Chunk& chunk = *chunk_now_;
    state_.marks.store(state_.marks.load(kRelaxed) + 1, kRelaxed);
    if (chunk.marks.size() == kMostMarks) {
        // The newest stands for all beyond: what waits for it waits long enough.
        if (chunk.marks.back().event != nullptr) {
            events_.push_back(chunk.marks.back().event);
        }
        chunk.marks.pop_back();
    }
    chunk.marks.push_back(mark);
    if (mark.event != nullptr) {
        const auto found = std::find_if(chunk.newest.begin(), chunk.newest.end(), [&mark](const auto& newest) {
            return newest.first == mark.stream;
        });
        if (found == chunk.newest.end()) {
            chunk.newest.emplace_back(mark.stream, mark.event);
        } else {
            found->second = mark.event;
        }
    }
    return chunk.first_mark + static_cast<MarkId>(chunk.marks.size()) - 1;
}

std::uint32_t Recorder::local(MarkId mark, std::uint32_t otherwise) const {
    return chunk_now_->holds(mark) ? static_cast<std::uint32_t>(mark - chunk_now_->first_mark) : otherwise;
}

MarkId Recorder::mark() {
    const Stream stream = stream_for(-1);
    const Lock lock(mutex_);
    return append(take_mark(false, stream));
}

const Mark* Recorder::pending(MarkId mark) const {
    const Chunk* chunk = chunk_now_.get();
    if (!chunk->holds(mark)) {
        const auto found =
            std::find_if(sealed_.begin(), sealed_.end(), [mark](const Chunk* sealed) { return sealed->holds(mark); });
        if (found == sealed_.end()) {
            return nullptr;
        }
        chunk = *found;
    }
    return chunk->at(mark).event == nullptr ? nullptr : &chunk->at(mark);
}

bool Recorder::done(MarkId mark) {
    const Lock lock(mutex_);
    const Mark* found = pending(mark);
    if (found == nullptr) {
        return true;
    }
    cuda_->enter();
    return cuda_->done(found->event);
}

// ---- spans

void Recorder::context(std::int32_t microbatch, std::int16_t chunk) {
    const Lock lock(mutex_);
    microbatch_ = microbatch;
    chunk_ = chunk;
}

int Recorder::innermost_name() const {
    return static_cast<int>(state_.activity.load(kRelaxed) >> kActivityBits) - 1;
}

void Recorder::tell_activity() {
    std::uint64_t word = 0;
    if (!open_.empty()) {
        const auto since_us = static_cast<std::uint64_t>(open_.back().begin_ns / 1000);
        word = (open_.back().name + std::uint64_t{1}) << kActivityBits |
               (since_us & ((std::uint64_t{1} << kActivityBits) - 1));
    }
    state_.activity.store(word, kRelaxed);
}

void Recorder::push(std::uint8_t name, MarkId begin) {
    const std::int64_t begin_ns = chunk_now_->holds(begin) ? chunk_now_->at(begin).host_ns : common::now_ns();
    open_.push_back({name, blocked_, static_cast<std::uint32_t>(chunk_now_->rows.size()), begin, begin_ns});
    blocked_ = static_cast<std::uint8_t>(blocked_ + (blocking_[name] ? 1 : 0));
}

Recorder::Open Recorder::pop() {
    if (open_.empty()) {
        throw std::logic_error("no span is open");
    }
    const Open open = open_.back();
    open_.pop_back();
    blocked_ = open.blocked;
    return open;
}

Row& Recorder::append_row(const Row& row) {
    if (chunk_now_->rows.size() == kMostRows) {
        lose(1);
        return beyond_;
    }
    chunk_now_->rows.push_back(row);
    return chunk_now_->rows.back();
}

Row& Recorder::close(const Open& open, MarkId end, MarkId issued) {
    const std::uint32_t end_mark = local(end, 0);
    const std::uint32_t begin_mark = local(open.begin, end_mark);
    Row row{};
    row.name = open.name;
    row.blocked = open.blocked;
    row.first = open.first;
    row.microbatch = microbatch_;
    row.chunk = chunk_;
    row.layer = -1;
    row.peer = -1;
    row.issue = issued == kNoMark ? begin_mark : local(issued, begin_mark);
    row.begin = begin_mark;
    row.end = end_mark;
    return append_row(row);
}

void Recorder::begin(std::uint8_t name, MarkId at) {
    const Stream stream = at == kNoMark ? stream_for(name) : nullptr;
    const Lock lock(mutex_);
    push(name, at == kNoMark ? append(take_mark(on_host_[name], stream)) : at);
    tell_activity();
}

template <typename Fill>
MarkId Recorder::end_innermost(MarkId issued, Fill fill_row) {
    const Stream stream = stream_for(innermost_name());
    const Lock lock(mutex_);
    const Open open = pop();
    const MarkId mark = append(take_mark(on_host_[open.name], stream));
    fill_row(close(open, mark, issued));
    tell_activity();
    return mark;
}

MarkId Recorder::end_work(std::int64_t tokens, std::int64_t length_squares) {
    return end_innermost(kNoMark, [&](Row& row) {
        row.tokens = tokens;
        row.length_squares = length_squares;
    });
}

MarkId Recorder::end_operation(const Operation& operation) {
    return end_innermost(operation.issued, [&](Row& row) { fill(row, operation); });
}

MarkId Recorder::cancel() {
    const Lock lock(mutex_);
    const MarkId begin = pop().begin;
    tell_activity();
    return begin;
}

void Recorder::restart() {
    const Stream stream = stream_for(innermost_name());
    const Lock lock(mutex_);
    const std::uint8_t name = pop().name;
    push(name, append(take_mark(on_host_[name], stream)));
    tell_activity();
}

void Recorder::switch_to(int close_count, std::int16_t layer, int open_first, int open_second) {
    const Stream stream = stream_for(-1);
    const Lock lock(mutex_);
    if (close_count > static_cast<int>(open_.size())) {
        throw std::logic_error("no span is open");
    }
    const MarkId mark = append(take_mark(false, stream));
    for (int i = 0; i < close_count; ++i) {
        close(pop(), mark, kNoMark).layer = layer;
    }
    for (const int name : {open_first, open_second}) {
        if (name >= 0) {
            push(static_cast<std::uint8_t>(name), mark);
        }
    }
    tell_activity();
}

void Recorder::add(std::uint8_t name, std::int64_t begin_ns, std::int64_t end_ns, std::int64_t cpu_ns) {
    const Lock lock(mutex_);
    const MarkId begin = append({begin_ns, 0, nullptr, nullptr});
    const MarkId end = append({end_ns, cpu_ns, nullptr, nullptr});
    const Open open{name, blocked_, static_cast<std::uint32_t>(chunk_now_->rows.size()), begin, begin_ns};
    Row& row = close(open, end, kNoMark);
    row.microbatch = -1;
    row.chunk = -1;
}

void Recorder::add_operation(
    std::uint8_t name, MarkId begin, MarkId end, const Operation& operation, std::int32_t microbatch,
    std::int16_t chunk) {
    const Lock lock(mutex_);
    if (!chunk_now_->holds(end)) {
        throw std::invalid_argument("no such mark in this step");
    }
    const Open open{name, blocked_, static_cast<std::uint32_t>(chunk_now_->rows.size()), begin, 0};
    Row& row = close(open, end, operation.issued);
    fill(row, operation);
    row.microbatch = microbatch;
    row.chunk = chunk;
}

std::pair<int, std::int64_t> Recorder::innermost() {
    const Lock lock(mutex_);
    return open_.empty() ? std::pair<int, std::int64_t>{-1, 0}
                         : std::pair<int, std::int64_t>{open_.back().name, open_.back().begin_ns};
}

std::size_t Recorder::depth() {
    const Lock lock(mutex_);
    return open_.size();
}

// ---- steps

void Recorder::end_step(const common::StepEnd& end) {
    if (std::unique_ptr<Chunk> refused = resolver_.put(seal(end))) {
        const Lock lock(mutex_);
        reuse(std::move(refused));
    }
}

std::unique_ptr<Chunk> Recorder::seal(const common::StepEnd& end) {
    const Lock lock(mutex_);
    std::unique_ptr<Chunk> sealed = std::move(chunk_now_);
    if (spare_.empty()) {
        chunk_now_ = new_chunk();
    } else {
        chunk_now_ = std::move(spare_.back());
        spare_.pop_back();
    }
    chunk_now_->first_mark = sealed->first_mark + static_cast<MarkId>(sealed->marks.size());
    open_.clear();
    blocked_ = 0;
    tell_activity();
    sealed->end = end;
    sealed->end.marks = sealed->marks.size();
    state_.step_marks.store(sealed->marks.size(), kRelaxed);
    sealed_.push_back(sealed.get());
    return sealed;
}

void Recorder::recycle(std::unique_ptr<Chunk> chunk) {
    {
        const Lock lock(mutex_);
        forget(*chunk);
    }
    // Nobody asks to watch its events any more. Those that are watched have passed: before they are used again.
    resolver_.poll_watches();
    const Lock lock(mutex_);
    reuse(std::move(chunk));
}

void Recorder::forget(const Chunk& chunk) {
    sealed_.erase(std::remove(sealed_.begin(), sealed_.end(), &chunk), sealed_.end());
}

void Recorder::reuse(std::unique_ptr<Chunk> chunk) {
    forget(*chunk);
    for (const Mark& mark : chunk->marks) {
        if (mark.event != nullptr) {
            events_.push_back(mark.event);
        }
    }
    chunk->marks.clear();
    chunk->rows.clear();
    chunk->newest.clear();
    spare_.push_back(std::move(chunk));
}

void Recorder::write_frame(std::string_view descriptor, std::string_view payload) {
    const Lock lock(bulk_mutex_);
    if (!bulk_) {
        throw std::logic_error("this recorder has no ring of frames");
    }
    common::write_frame(*bulk_, descriptor, payload);
}

void Recorder::complete_at(std::uint32_t track, std::uint64_t ticket, MarkId mark) {
    frontiers_.check(track);
    {
        const Lock lock(mutex_);
        if (const Mark* found = pending(mark)) {
            resolver_.watch(found->stream, found->event, track, ticket);
            return;
        }
    }
    frontiers_.complete(track, ticket);
}

}  // namespace megatronapp::scan
