// A fork copies a process with all its locks and one of its threads. So that the child can go on, nobody holds a
// recorder's lock at that moment; and the child's recorders write nowhere, since a segment has one writer.
#pragma once

namespace megatronapp::scan {

class Recorder;

// Throws std::runtime_error without memory for it.
void enter_forks(Recorder& recorder);
void leave_forks(Recorder& recorder);

}  // namespace megatronapp::scan
