#include "lanes/wire.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "common/clock.h"
#include "lanes/copy.h"

namespace megatronapp::rdma {

namespace {

constexpr std::size_t kFrameBytes = 1 << 20;   // what is more urgent waits no longer than for this
constexpr int kUnsentBytes = 1 << 20;           // nor behind more than this in the kernel
constexpr int kFramesAtOnce = 2;                // of data: a reader that keeps up must not hold the engine's lock
constexpr std::size_t kBufferBytes = 16 << 10;  // more than that of a payload is read where it belongs

bool again(int number) { return number == EAGAIN || number == EWOULDBLOCK || number == EINTR; }

}  // namespace

Wire::Wire(Matcher& core, int descriptor, bool checksum, std::size_t most_bytes)
    : core_(core), descriptor_(descriptor), checksum_(checksum), frame_bytes_(std::min(most_bytes, kFrameBytes)),
      heard_ns_(common::now_ns()), buffer_(kBufferBytes) {
    fcntl(descriptor_, F_SETFL, fcntl(descriptor_, F_GETFL) | O_NONBLOCK);
    setsockopt(descriptor_, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes, sizeof kUnsentBytes);  // of TCP alone
}

void Wire::close(std::string reason) {
    if (descriptor_ >= 0) {
        shutdown(descriptor_, SHUT_RDWR);
        descriptor_ = -1;
        reason_ = std::move(reason);
        mail_.clear();
        sending_.clear();
        moving_.reset();
        stopping_ = false;
        receiving_.reset();
        left_ = 0;
    }
}

void Wire::post(const Message& message) {
    if (open()) {
        mail_.push_back(message);
        write_some();
    }
}

void Wire::start(const OperationPtr& send, const Message&) {
    sending_.push(send);
    write_some();
}

// Between two frames, so that the stream stays whole.
Stop Wire::stop(const OperationPtr& send) {
    if (moving_ == send) {
        const bool last = send->offset + payload_ == send->what.bytes;
        stopping_ = !last;
        return last ? Stop::kTooLate : Stop::kSoon;
    }
    return sending_.remove(send) ? Stop::kStopped : Stop::kTooLate;
}

bool Wire::progress() {
    bool moved = false;
    if (open()) {
        moved |= read_some();
    }
    if (open()) {
        moved |= write_some();
    }
    return moved;
}

// ---- out

bool Wire::next_frame() {
    payload_ = 0;
    if (!mail_.empty()) {
        out_ = mail_.front();
        mail_.pop_front();
    } else if (!sending_.empty()) {
        moving_ = sending_.front();
        const Operation& send = *moving_;
        payload_ = std::min<std::size_t>(send.what.bytes - send.offset, frame_bytes_);
        payload_data_ = send.buffer + send.offset;
        out_ = Message{};
        out_.kind = MessageKind::kData;
        out_.receive = send.ready.receive;
        out_.tag = send.tag;
        out_.offset = send.offset;
        out_.length = payload_;
        out_.checksum = checksum_ ? crc32c(payload_data_, payload_) : 0;
    } else {
        return false;
    }
    left_ = sizeof out_ + payload_;
    return true;
}

void Wire::frame_written() {
    if (out_.kind != MessageKind::kData) {
        return;
    }
    const OperationPtr send = std::move(moving_);
    moving_.reset();
    send->offset += payload_;
    if (send->offset == send->what.bytes) {
        sending_.remove(send);
        core_.finished(send, Status::kDone);
    } else if (stopping_) {
        stopping_ = false;
        sending_.remove(send);
        core_.stopped(send);
    }
}

bool Wire::write_some() {
    bool moved = false;
    for (int frames = 0; open() && frames < kFramesAtOnce && (left_ != 0 || next_frame());) {
        const std::size_t header = left_ > payload_ ? left_ - payload_ : 0;
        const std::size_t rest = left_ - header;
        iovec parts[2] = {
            {reinterpret_cast<char*>(&out_) + (sizeof out_ - header), header},
            {const_cast<char*>(payload_data_) + (payload_ - rest), rest}};
        msghdr message{};
        message.msg_iov = header != 0 ? parts : parts + 1;
        message.msg_iovlen = header != 0 && rest != 0 ? 2 : 1;
        const ssize_t written = sendmsg(descriptor_, &message, MSG_NOSIGNAL);
        if (written < 0) {
            // Whoever hung up may have sent before: reading tells the end.
            return moved;
        }
        moved = true;
        left_ -= static_cast<std::size_t>(written);
        if (left_ == 0) {
            frames += out_.kind == MessageKind::kData;
            frame_written();
        }
    }
    return moved;
}

// ---- in

bool Wire::read_some() {
    const bool direct = receiving_ != nullptr && receiving_->pending() && expected_ > kBufferBytes;
    char* to = direct ? receiving_->buffer + in_.offset + (in_.length - expected_) : buffer_.data();
    const ssize_t got = recv(descriptor_, to, direct ? expected_ : buffer_.size(), 0);
    if (got < 0 && again(errno)) {
        return false;
    }
    if (got <= 0) {
        close(got == 0 || errno == ECONNRESET ? "its process has ended" : std::strerror(errno));
        return true;
    }
    heard_ns_ = common::now_ns();
    if (direct) {
        expected_ -= static_cast<std::uint64_t>(got);
        if (expected_ == 0) {
            frame_read();
        }
        return true;
    }
    for (std::size_t used = 0; open() && used < static_cast<std::size_t>(got);) {
        used += take(buffer_.data() + used, static_cast<std::size_t>(got) - used);
    }
    return true;
}

// Uses some of what came in, and says how much.
std::size_t Wire::take(const char* from, std::size_t bytes) {
    if (expected_ != 0) {
        const std::size_t used = std::min<std::size_t>(bytes, expected_);
        if (receiving_ != nullptr && receiving_->pending()) {
            std::memcpy(receiving_->buffer + in_.offset + (in_.length - expected_), from, used);
        }
        expected_ -= used;
        if (expected_ == 0) {
            frame_read();
        }
        return used;
    }
    const std::size_t used = std::min(bytes, sizeof in_ - header_have_);
    std::memcpy(reinterpret_cast<char*>(&in_) + header_have_, from, used);
    header_have_ += used;
    if (header_have_ == sizeof in_) {
        header_have_ = 0;
        header_read();
    }
    return used;
}

void Wire::header_read() {
    if (in_.kind != MessageKind::kData) {
        return core_.on_control(in_);
    }
    receiving_ = core_.receiving(in_.receive);
    const bool fits = receiving_ == nullptr || (in_.offset <= receiving_->what.bytes &&
                                                in_.length <= receiving_->what.bytes - in_.offset);
    if (!fits) {
        return close("it sent more than was agreed");
    }
    expected_ = in_.length;
    if (expected_ == 0) {
        frame_read();
    }
}

void Wire::frame_read() {
    const OperationPtr receive = std::move(receiving_);
    receiving_.reset();
    if (receive == nullptr || !receive->pending()) {
        return;
    }
    if (checksum_ && crc32c(receive->buffer + in_.offset, in_.length) != in_.checksum) {
        core_.finished(receive, Status::kCorrupt, "what came over the network is not what was sent");
    } else if (in_.offset + in_.length == receive->what.bytes) {
        core_.finished(receive, Status::kDone);
    }
}

}  // namespace megatronapp::rdma
