package event

// This file defines what a capturer reports about itself (how many events it saw, sent and lost)
// and about its target (versions).

// Counters account for every hit of an op probe:
//
//	Hits = OtherThreads + NoWeight + OpsSent + OpsLost + Unfinished + Faults
//
// Misses are hits that the kernel skipped. They are not part of Hits. If several processes are
// traced, the counters are sums over all of them.
type Counters struct {
	Hits         uint64 `json:"hits"`          // op probes that fired in the target
	OtherThreads uint64 `json:"other_threads"` // filtered: not on ggml's thread 0
	NoWeight     uint64 `json:"no_weight"`     // filtered: on thread 0, but the op reads no weight
	OpsSent      uint64 `json:"ops_sent"`      // written to the ring buffer
	OpsLost      uint64 `json:"ops_lost"`      // lost: the ring buffer was full
	Unfinished   uint64 `json:"unfinished"`    // still running when the capture ended
	Received     uint64 `json:"received"`      // ops that were read from the ring buffer
	// OthersLost counts other events (begin and end of decodes, ids, chosen experts) that were lost
	// because the ring buffer was full.
	OthersLost uint64 `json:"others_lost"`
	Faults     uint64 `json:"faults"` // the op itself could not be read from the target's memory
	// source tensors whose address could not be resolved to a mapping
	Unresolved uint64 `json:"unresolved"`
	// ops whose weights or ids could not be read completely, or do not fit an event
	Clipped uint64 `json:"clipped"`
	// hits that the kernel skipped because another probe was running on that CPU
	Misses     uint64 `json:"recursion_misses,omitempty"`
	PagesSent  uint64 `json:"pages_sent,omitempty"`  // page-ins written to the ring buffer
	PagesLost  uint64 `json:"pages_lost,omitempty"`  // page-ins lost because the ring buffer was full
	InputsSent uint64 `json:"inputs_sent,omitempty"` // RouterInput events written to the ring buffer
	// RouterInput events lost: the ring buffer was full, or they could not be read
	InputsLost uint64 `json:"inputs_lost,omitempty"`
	// PageInsDropped counts page-ins that came before their file was known to be a model's, and for
	// which there was no room.
	PageInsDropped uint64 `json:"page_ins_dropped,omitempty"`
}

// Lost is the number of events that are missing from the tables.
func (c Counters) Lost() uint64 {
	return c.OpsLost + c.OthersLost + c.Misses + c.PagesLost + c.InputsLost + c.PageInsDropped
}

// Incomplete is the number of ops whose rows are missing or lack data for another reason than a
// lost event.
func (c Counters) Incomplete() uint64 { return c.Faults + c.Unresolved + c.Clipped }

// Filtered is the number of hits that were ignored on purpose.
func (c Counters) Filtered() uint64 { return c.OtherThreads + c.NoWeight }

// TargetInfo describes a target's ggml. Unknown fields are empty.
type TargetInfo struct {
	GGMLVersion string `json:"ggml_version,omitempty"`
	GGMLCommit  string `json:"ggml_commit,omitempty"`
	// LayoutOrigin is where the layout of ggml's structs was taken from, for example "DWARF of PATH".
	LayoutOrigin string `json:"layout_origin,omitempty"`
}
