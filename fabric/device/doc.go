// Package device is the emulated accelerator as a process. Clients hand it weights once and then have it
// multiply, through memory that they share with it. Each client has a memory file of its own and can reach no
// other's. [Listen] makes a device, [Device.Serve] runs it.
//
// # The socket
//
// The socket is a Unix socket (SOCK_SEQPACKET) in a directory that only its owner can enter; the peer's user
// id is checked as well. A client sends one hello, in native byte order like everything here:
//
//	 0 u64 magic "TFMBSDEV"    8 u32 version, 1    12 u32 kind: 1 open, 2 status, 3 room, 4 wish
//	16 u64 bytes of arena     24 u32 entries of each ring, a power of two    28 u32 zero
//
// Of kind 3, room, the number at 16 is how many bytes the held tensors may take. Of kind 4, wish, it is how
// many indices of tensors (u32) follow the hello: these are to be held, in this order. Root may send all
// kinds but open; nobody but the owner may open.
//
// The answer to status is one packet of JSON ([Status]). The answers to room and wish are as the following
// one, without a file. The answer to open is
//
//	0 u64 magic    8 u32 version    12 i32 status    16 u64 bytes of the memory file    24 u64 zero
//
// and, with status 0, the file's descriptor (SCM_RIGHTS). The file is sealed, so that nobody can shrink it:
// that would kill whoever reads it. The socket stays open as long as the client lives. When the client hangs
// up, the device drops all that it had.
//
// # The memory file
//
//	page 0     header: 0 u64 magic, 8 u32 version, 12 u32 entries, 16 u64 offset of the submission ring,
//	           24 of the completion ring, 32 of the arena, 40 u64 bytes of the arena. The device writes these and
//	           never reads them back. Then the words that both use, each in a cache line of its own:
//	           64 u32 submitted  (client: entries written)      128 u32 taken     (device: entries read)
//	           192 u32 completed (device: entries written)      256 u32 reaped    (client: entries read)
//	           320 u32 doorbell  (client adds 1; a futex)
//	           384 u32 asleep    (device: 1 waits for work, 2 for room in the completion ring)
//	           448 u32 bell      (device adds 1; a futex)
//	           512 u32 waiting   (client: how many of its threads wait)
//	           576 u32 wanted    (client: of completed, what the first of them waits for)
//	           640 u32 held      (device: how often what it holds has changed, as of the last job)
//	page 1...  submission ring, entries of 128 bytes ([Descriptor]); completion ring, entries of 64 bytes
//	           ([Completion]); both page-aligned
//	arena      the client's to divide: it lays operands there, and says in descriptors where
//
// To submit, a client writes the entry, stores submitted (release), adds 1 to doorbell, and wakes the futex
// doorbell if asleep is not 0. The device stores asleep before it looks a last time, and sleeps on the value
// of doorbell that it read before that: so no wake is lost. After a product it looks for the next one for
// some time before it sleeps.
//
// Completions go the other way round. The device wakes nobody before completed has reached wanted (modulo
// 2^32), which a client stores before it waits: whoever waits for several jobs is woken once. A client that
// reads completions while asleep is 2 rings as well. Futexes are shared ones (no FUTEX_PRIVATE_FLAG).
//
// # The life of a job
//
// One goroutine for each client takes entries in order. It copies an entry once and checks the copy, as the
// client can write anything at any time. It computes with copies of the operands and copies the results out:
// a client that changes its memory meanwhile spoils only its own result. A wrong descriptor is completed with
// a status below 0 (a negated errno). An impossible ring (more submitted than there are entries) ends the
// connection.
//
// A job is cancelled by setting the word Cancel in its entry. If the job has not begun, or between two tiles
// of a batch, it is completed with -ECANCELED. Each entry that is taken gives exactly one completion, in
// order. Clients share the processors: products of different clients follow each other.
//
// # Weights
//
// An upload (a frame, planes in PT-5, or ggml's own blocks) gives a handle, which belongs to the client.
// Blocks of Q2_0 are kept as they are, and count as a plane. Blocks of other types become planes: exact ones,
// or, with FlagFast or FlagBalanced, as few as keep the bound of that profile. Equal uploads of several
// clients share one copy. They are found by the SHA-256 of what was uploaded; nobody can write to the copy.
//
// Two or three planes that blocks became, with a factor for each 32 columns, are kept as bands where the
// processor has kernels for them ([fabric.PackBands]). In bands, five rows share bytes. They are multiplied
// faster, and are evicted as a whole.
//
// Planes are in the pool ([Pool]) or, evicted, on the host (outside of the pool). If room is needed, the
// planes are evicted that are expected to be used last: first those that are not their term's highest, so
// that precision is lost before weights are, then the rest. A weight is expected after as many products as
// were between its last two uses. One that is overdue, or was used once, is expected after as long as its
// last use is ago. Planes that are pinned or in use stay. Planes of the next products are brought back while
// others are computed.
//
// A product brings back what is missing, unless it allows less precision (FlagDegrade). Then it uses the
// planes that are there, and the completion says how many these were.
//
// A device can also hold weights that it reads from a model's file itself ([Device.Hold]), straight into the
// pool, a few MiB of the file at a time. A client finds them ([OpFind]) by the file (device number and
// inode), the offset in it, type and shape, and by a hash of some of the bytes, as the client has them. If
// the file was written to since, nothing of it is found. Held weights are pinned.
//
// When their room shrinks ([Device.Room]), tensors that have a plane more than they need ([Form].Finer) lose
// it, in reverse order. Products before and after that differ; clients notice nothing else. If that is not
// enough, whole tensors are let go, in reverse order. A client's products with them are completed with
// -ESTALE, and the client computes itself.
//
// # Products
//
// [OpProduct] multiplies by N vectors, XStride bytes apart. They are float32, which the device quantises as
// ggml does in blocks of Block (32 or 256); int8, with or without a factor for each block (at Scale); or
// trits in PT-5. Results are float32, with the scales of the weights. For weights without scales they can be
// int32: then they are exact, or refused with -ERANGE where sums of float32 could not hold them.
package device
