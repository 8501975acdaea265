// Package device is the emulated accelerator as a process: clients hand it weights once and then have it multiply, through memory that they share with it.
// Each client has a memory file of its own and can reach no other's. [Listen] makes a device, [Device.Serve] runs it.
//
// # The socket
//
// A Unix socket (SOCK_SEQPACKET, in a directory that only its owner can enter; the peer's user id is checked, too). A client sends one hello, native byte
// order like everything here:
//
//	 0 u64 magic "TFMBSDEV"    8 u32 version, 1    12 u32 kind: 1 open, 2 status
//	16 u64 bytes of arena     24 u32 entries of each ring, a power of two    28 u32 zero
//
// or kind 3, room: the number at 16 is how many bytes what the device holds of files may take. Root may ask for the status and set the room, too; nobody but the owner may open.
//
// The answer to status is one packet of JSON ([Status]), that to room is as the following, without a file. The answer to open is
//
//	0 u64 magic    8 u32 version    12 i32 status    16 u64 bytes of the memory file    24 u64 zero
//
// and, with status 0, the file's descriptor (SCM_RIGHTS). It is sealed: nobody can shrink it, which would kill who reads it. The socket then stays open as
// long as the client lives. When it hangs up, the device drops all that the client had.
//
// # The memory file
//
//	page 0     header: 0 u64 magic, 8 u32 version, 12 u32 entries, 16 u64 offset of the submission ring, 24 of the completion ring,
//	           32 of the arena, 40 u64 bytes of the arena. Told, never read back. Then the words that both use, each in a cache line of its own:
//	           64 u32 submitted  (client: entries written)      128 u32 taken     (device: entries read)
//	           192 u32 completed (device: entries written)      256 u32 reaped    (client: entries read)
//	           320 u32 doorbell  (client adds 1; a futex)       384 u32 asleep    (device: 1 waits for work, 2 for room in the completion ring)
//	           448 u32 bell      (device adds 1; a futex)       512 u32 waiting   (client: how many of its threads wait)
//	           576 u32 wanted    (client: of completed, what the first of them waits for)
//	           640 u32 held      (device: how often what it holds has changed, as of the last job)
//	page 1...  submission ring, entries of 128 bytes ([Descriptor]); completion ring, entries of 64 bytes ([Completion]); both page-aligned
//	arena      the client's to divide: it lays operands there, and says in descriptors where
//
// To submit: write the entry, store submitted (release), add 1 to doorbell, and if asleep is not 0, wake the futex doorbell. The device stores asleep before it
// looks a last time and sleeps on the doorbell's value that it read before: no wake is lost. After a product it looks for some time for the next one before it sleeps.
// Completions go the other way round. Nobody is woken before completed has reached wanted (modulo 2^32), which a client stores before it waits: who waits for several jobs
// is woken once. A client that is reaping when asleep is 2 rings, too. Futexes are shared ones (no FUTEX_PRIVATE_FLAG).
//
// # The life of a job
//
// One goroutine for each client takes entries in order. It copies an entry once, and checks the copy: the client can write anything at any time. What is
// computed is computed from copies of the operands and copied out, so that a client that changes its memory meanwhile spoils its own result only. A wrong
// descriptor is completed with a status below 0 (a negated errno). An impossible ring (more submitted than there are entries) ends the connection.
// A job is cancelled by setting the word Cancel in its entry: if it has not begun, or between two tiles of a batch, it is completed with -ECANCELED.
// Each entry taken gives exactly one completion, in order. Clients share the processors: products of different clients follow each other.
//
// # Weights
//
// An upload (a frame, planes in PT-5, or ggml's own blocks) gives a handle, which belongs to the client. Blocks of Q2_0 are kept as they are,
// and count as a plane; those of other types become planes, exact or, with FlagFast or FlagBalanced, as few as keep that profile's bound. Equal uploads of several clients share one copy, found by the
// SHA-256 of what was uploaded; nobody can write to it. Two or three planes that blocks became, with a factor for each 32 columns, are kept as bands where the processor has kernels for them
// ([fabric.PackBands]): five rows share bytes, which are multiplied faster, and give way as a whole. Planes are in the pool ([Pool]) or, evicted, on the host (outside of it). If room is needed, planes
// give way that are expected to be used last: first those that are not their term's highest (precision degrades before presence does), then the rest. A weight is expected after as many products as were between its last two
// uses; one that is overdue, or was used once, counts by how long ago that was. What is pinned or in use stays. Planes of the next products are brought back while others are computed. A product brings back what is missing, unless it allows less precision (FlagDegrade): then the planes that are there have to do, and the
// completion tells how many were used.
//
// A device can also hold weights that it reads from a model's file itself ([Device.Hold]): straight into the pool, a few MiB of the file at a time. A client finds them ([OpFind]) by the
// file (device number and inode), the place in it, type and shape, and by a hash of some of the bytes, as it has them; if the file was written to since, nothing of it is found. They are pinned.
// When their room shrinks ([Device.Room]), tensors that have a plane more than they need ([Form].Finer) lose it, in reverse order; products before and after that differ, and clients notice nothing else.
// If that is not enough, whole tensors are let go, in reverse order: a client's products with them are completed with -ESTALE, and it computes itself.
//
// # Products
//
// [OpProduct] multiplies by N vectors, XStride bytes apart: float32, which the device quantises as ggml does in blocks of Block (32 or 256); int8 with a factor
// for each block (at Scale) or without; or trits in PT-5. Results are float32, with the scales of the weights, or int32 for weights without
// scales: then exact, or refused with -ERANGE where float32 sums could not hold them.
package device
