// Package readahead makes a process's own faults read little around themselves in its model, and undoes that.
//
// A fault in a mapping of a file reads up to ra_pages around itself (do_sync_mmap_readahead in Linux's
// mm/filemap.c), a number that belongs to the open file. It is the disk's read_ahead_kb when the file is
// opened, and twice that after FADV_SEQUENTIAL, which llama.cpp advises. Of a mixture of experts most of what
// is read in this way is not needed. Nobody outside of a process can change the number, except:
//
//   - through the open file itself. The mapping shares it, and with it ra_pages, with the descriptor that made the
//     mapping. llama.cpp closes that descriptor when its model is loaded, but whoever took it before still has it
//     (pidfd_getfd, Linux 5.6). FADV_NORMAL copies the disk's read_ahead_kb to the open file (mm/fadvise.c). That
//     setting is everybody's, and has to be the small one at that moment, for some ten microseconds. FADV_RANDOM does
//     not help: its flag is shared, too, but a fault does not look at it.
//   - by the process itself. A thread of it is stopped (ptrace) and made to advise the mapping (MADV_RANDOM). Then a
//     fault reads one page, which is little for one that misses after all.
//
// A change outlives the process that made it. So another process, the guardian, makes it, and undoes it when
// the first one has ended, however that happened.
package readahead

//go:generate go tool bpf2go -target amd64,arm64 -type mapping mappings bpf/mappings.bpf.c -- -mcpu=v3 -Wall -Wextra -Wno-unused-parameter -Werror -I/usr/include/x86_64-linux-gnu
