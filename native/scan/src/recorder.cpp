#include "recorder.h"

#include <algorithm>
#include <stdexcept>

#include "clock.h"

namespace megatronapp {

namespace {

constexpr std::size_t kFirstRows = 4096;

std::unique_ptr<Chunk> new_chunk() {
    auto chunk = std::make_unique<Chunk>();
    chunk->rows.reserve(kFirstRows);
    chunk->marks.reserve(2 * kFirstRows);
    return chunk;
}

}  // namespace

const std::array<const char*, kColumns> kColumnNames = {
    "name", "first", "blocked", "microbatch", "chunk", "layer", "communicator", "peer", "sequence",
    "bytes", "tokens", "length_squares", "stream", "issue", "begin", "end", "cpu", "enqueue", "behind"};

Recorder::Recorder(
    std::string on_host, std::string blocking, std::unique_ptr<Cuda> cuda, CurrentStream current_stream)
    : on_host_(std::move(on_host)),
      blocking_(std::move(blocking)),
      cuda_(std::move(cuda)),
      current_stream_(std::move(current_stream)),
      chunk_now_(new_chunk()) {
    open_.reserve(64);
}

Mark Recorder::host_mark() const { return {now_ns(), thread_cpu_ns(), nullptr}; }

Mark Recorder::stream_mark() {
    if (!cuda_) {
        return host_mark();
    }
    const std::int64_t host_ns = now_ns();
    return {host_ns, 0, cuda_->record(current_stream_())};
}

MarkId Recorder::append(const Mark& mark) {
    chunk_now_->marks.push_back(mark);
    return chunk_now_->first_mark + static_cast<MarkId>(chunk_now_->marks.size()) - 1;
}

std::uint32_t Recorder::local(MarkId mark, std::uint32_t otherwise) const {
    return mark >= chunk_now_->first_mark ? static_cast<std::uint32_t>(mark - chunk_now_->first_mark) : otherwise;
}

void Recorder::push(std::uint8_t name, MarkId begin) {
    open_.push_back({name, blocked_, static_cast<std::uint32_t>(chunk_now_->rows.size()), begin});
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

Row& Recorder::close(const Open& open, MarkId end, MarkId issued, std::int16_t layer) {
    const std::uint32_t end_mark = local(end, 0);
    const std::uint32_t begin_mark = local(open.begin, end_mark);
    Row row{};
    row.name = open.name;
    row.blocked = open.blocked;
    row.first = open.first;
    row.microbatch = microbatch_;
    row.chunk = chunk_;
    row.layer = layer;
    row.peer = -1;
    row.issue = issued == kNoMark ? begin_mark : local(issued, begin_mark);
    row.begin = begin_mark;
    row.end = end_mark;
    chunk_now_->rows.push_back(row);
    return chunk_now_->rows.back();
}

void Recorder::begin(std::uint8_t name, MarkId at) { push(name, at == kNoMark ? append(mark_for(name)) : at); }

MarkId Recorder::end() { return end_work(0, 0); }

MarkId Recorder::end_work(std::int64_t tokens, std::int64_t length_squares) {
    const Open open = pop();
    const MarkId mark = append(mark_for(open.name));
    Row& row = close(open, mark, kNoMark, -1);
    row.tokens = tokens;
    row.length_squares = length_squares;
    return mark;
}

MarkId Recorder::end_operation(
    std::uint32_t communicator, std::int32_t peer, std::int64_t sequence, std::int64_t bytes, std::uint8_t stream,
    MarkId issued) {
    const Open open = pop();
    const MarkId mark = append(mark_for(open.name));
    Row& row = close(open, mark, issued, -1);
    row.communicator = communicator;
    row.peer = peer;
    row.sequence = sequence;
    row.bytes = bytes;
    row.stream = stream;
    return mark;
}

MarkId Recorder::cancel() { return pop().begin; }

void Recorder::restart() { begin(pop().name, kNoMark); }

void Recorder::switch_to(int close_count, std::int16_t layer, int open_first, int open_second) {
    const MarkId mark = append(stream_mark());
    for (int i = 0; i < close_count; ++i) {
        close(pop(), mark, kNoMark, layer);
    }
    for (const int name : {open_first, open_second}) {
        if (name >= 0) {
            push(static_cast<std::uint8_t>(name), mark);
        }
    }
}

void Recorder::add(std::uint8_t name, std::int64_t begin_ns, std::int64_t end_ns, std::int64_t cpu_ns) {
    const MarkId begin = append({begin_ns, 0, nullptr});
    const MarkId end = append({end_ns, cpu_ns, nullptr});
    const Open open{name, blocked_, static_cast<std::uint32_t>(chunk_now_->rows.size()), begin};
    Row& row = close(open, end, kNoMark, -1);
    row.microbatch = -1;
    row.chunk = -1;
}

bool Recorder::done(MarkId mark) {
    if (!cuda_) {
        return true;
    }
    const auto holds = [mark](const Chunk& chunk) {
        return mark >= chunk.first_mark && mark < chunk.first_mark + static_cast<MarkId>(chunk.marks.size());
    };
    const auto query = [this, mark](const Chunk& chunk) {
        const Event event = chunk.marks[static_cast<std::size_t>(mark - chunk.first_mark)].event;
        cuda_->enter();
        return event == nullptr || cuda_->done(event);
    };
    if (holds(*chunk_now_)) {
        return query(*chunk_now_);
    }
    const auto found =
        std::find_if(sealed_.begin(), sealed_.end(), [&holds](const Chunk* chunk) { return holds(*chunk); });
    return found == sealed_.end() || query(**found);
}

std::pair<int, std::int64_t> Recorder::innermost() const {
    if (open_.empty()) {
        return {-1, 0};
    }
    const Open& open = open_.back();
    const MarkId place = open.begin - chunk_now_->first_mark;
    return {open.name, place < 0 ? 0 : chunk_now_->marks[static_cast<std::size_t>(place)].host_ns};
}

std::unique_ptr<Chunk> Recorder::seal() {
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
    sealed_.push_back(sealed.get());
    return sealed;
}

bool Recorder::ready(const Chunk& chunk) const {
    if (!cuda_) {
        return true;
    }
    cuda_->enter();
    // Backwards: the newest of a stream is mostly the last to be done.
    return std::all_of(chunk.marks.rbegin(), chunk.marks.rend(), [this](const Mark& mark) {
        return mark.event == nullptr || cuda_->done(mark.event);
    });
}

Resolved Recorder::resolve(const Chunk& chunk) {
    Resolved resolved;
    std::vector<std::int64_t> times(chunk.marks.size());
    Reference reference{};
    if (cuda_) {
        cuda_->enter();
        reference = cuda_->reference();
        resolved.reference_ns = reference.host_ns;
        resolved.reference_error_ns = reference.error_ns;
    }
    std::transform(chunk.marks.begin(), chunk.marks.end(), times.begin(), [&](const Mark& mark) {
        return mark.event == nullptr ? mark.host_ns
                                     : reference.host_ns + cuda_->elapsed_ns(reference.event, mark.event);
    });
    for (auto& column : resolved.columns) {
        column.resize(chunk.rows.size());
    }
    for (std::size_t i = 0; i < chunk.rows.size(); ++i) {
        const Row& row = chunk.rows[i];
        const Mark& begin = chunk.marks[row.begin];
        const bool streamed = begin.event != nullptr;
        const std::array<std::int64_t, kColumns> values = {
            row.name, row.first, row.blocked, row.microbatch, row.chunk, row.layer, row.communicator, row.peer,
            row.sequence, row.bytes, row.tokens, row.length_squares, row.stream, times[row.issue], times[row.begin],
            times[row.end], streamed ? 0 : chunk.marks[row.end].cpu_ns - begin.cpu_ns,
            streamed ? chunk.marks[row.issue].host_ns : 0,
            streamed ? times[row.end] - chunk.marks[row.end].host_ns : 0};
        for (std::size_t column = 0; column < kColumns; ++column) {
            resolved.columns[column][i] = values[column];
        }
    }
    return resolved;
}

void Recorder::recycle(std::unique_ptr<Chunk> chunk) {
    sealed_.erase(std::remove(sealed_.begin(), sealed_.end(), chunk.get()), sealed_.end());
    for (const Mark& mark : chunk->marks) {
        if (mark.event != nullptr) {
            cuda_->give_back(mark.event);
        }
    }
    chunk->marks.clear();
    chunk->rows.clear();
    spare_.push_back(std::move(chunk));
}

}  // namespace megatronapp
