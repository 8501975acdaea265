package event

// This file defines what a capturer says about itself and its target: losses, versions.

// Counters account for every probe hit: Hits = OtherThreads + NoWeight + OpsSent + OpsLost + Unfinished + Faults, and for hits
// that did not get so far (Misses). Where several processes are traced, they are those of all together.
type Counters struct {
	Hits           uint64 `json:"hits"`                       // op probes that fired in the target
	OtherThreads   uint64 `json:"other_threads"`              // filtered: not ggml's thread 0
	NoWeight       uint64 `json:"no_weight"`                  // filtered: thread 0, but the op reads no weight
	OpsSent        uint64 `json:"ops_sent"`                   // handed to the ring buffer
	OpsLost        uint64 `json:"ops_lost"`                   // did not fit the ring buffer
	Unfinished     uint64 `json:"unfinished"`                 // begun when the capture ended
	Received       uint64 `json:"received"`                   // op events that were read from the ring buffer
	OthersLost     uint64 `json:"others_lost"`                // other events (decode begins and ends, ids) that did not fit
	Faults         uint64 `json:"faults"`                     // the op itself could not be read from the target's memory
	Unresolved     uint64 `json:"unresolved"`                 // sources whose mapping could not be looked up
	Clipped        uint64 `json:"clipped"`                    // ops whose weights or ids could not be read whole, or are more than an event carries
	Misses         uint64 `json:"recursion_misses,omitempty"` // hits that the kernel skipped, since it was busy with another probe on that CPU
	PagesSent      uint64 `json:"pages_sent,omitempty"`       // page-ins handed to the ring buffer
	PagesLost      uint64 `json:"pages_lost,omitempty"`       // page-ins that did not fit
	PageInsDropped uint64 `json:"page_ins_dropped,omitempty"` // came before their file was known as a model's, and were more than is kept
}

// Lost is the number of events that are missing from the tables.
func (c Counters) Lost() uint64 {
	return c.OpsLost + c.OthersLost + c.Misses + c.PagesLost + c.PageInsDropped
}

// Incomplete is the number of ops whose rows are missing or say too little, for another reason than loss.
func (c Counters) Incomplete() uint64 { return c.Faults + c.Unresolved + c.Clipped }

// Filtered is the number of hits that were dropped on purpose.
func (c Counters) Filtered() uint64 { return c.OtherThreads + c.NoWeight }

// TargetInfo is what a target says about itself. What is not known is empty.
type TargetInfo struct {
	GGMLVersion  string `json:"ggml_version,omitempty"`
	GGMLCommit   string `json:"ggml_commit,omitempty"`
	LayoutOrigin string `json:"layout_origin,omitempty"` // where the layout of ggml's structs was taken from ("DWARF")
}
