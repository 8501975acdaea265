package holding

// This file judges whether keeping pages of the model's files in memory can make a process faster, and says why not.

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/visible"
)

// Reason is why keeping pages of a model helps less, or not at all.
type Reason string

// The reasons.
const (
	NoModel         Reason = "no model"
	Copied          Reason = "copied"
	OnDevice        Reason = "on a GPU"
	Undecided       Reason = "undecided"
	Negligible      Reason = "negligible"
	InMemory        Reason = "tmpfs"
	HugeTLB         Reason = "hugetlb"
	DAX             Reason = "dax"
	NoPageOut       Reason = "no page-out"
	Locked          Reason = "locked"
	Shared          Reason = "shared"
	RoutedExperts   Reason = "routed experts"
	Fits            Reason = "fits"
	OtherPrefetcher Reason = "other prefetcher"
	FileChanged     Reason = "file changed"
	Network         Reason = "network"
)

// Finding is a reason that holds.
type Finding struct {
	Reason Reason `json:"reason"`
	Blocks bool   `json:"blocks"` // nothing is to be won; else it is mere information
	Text   string `json:"text"`   // one line: why, and what to do
	PIDs   []int  `json:"pids,omitempty"`
}

// Verdict says whether a helper could make the process faster.
type Verdict struct {
	Helps    bool      `json:"helps"`
	Keep     int64     `json:"keep"`      // how much could be kept in memory, at most
	PerToken int64     `json:"per_token"` // of so many bytes that each token reads of the files, at most; those that cannot be paged out are left out
	Experts  int64     `json:"experts"`   // how much of routed experts could be kept besides, at most
	Routed   int64     `json:"routed"`    // of so many bytes
	Findings []Finding `json:"findings"`  // those that block first
}

// Line is the verdict in one line.
func (v *Verdict) Line() string {
	switch {
	case v.Helps && v.Routed > 0:
		return fmt.Sprintf("would help: keeps about %s of the %s that every token reads, and %s of %s of experts", size(v.Keep), size(v.PerToken), size(v.Experts), size(v.Routed))
	case v.Helps:
		return fmt.Sprintf("would help: keeps about %s of the %s that a token reads", size(v.Keep), size(v.PerToken))
	}
	return "nothing to win: " + v.Findings[0].Text
}

// Judge decides with the room that is left for pages of the model, those that are resident included, after what whoever asks keeps in reserve; a negative one is
// unknown. claimed says that another helper has claimed the process.
func (h *Holding) Judge(room int64, claimed bool) Verdict {
	var v Verdict
	var notes []Finding
	find := func(blocks bool, reason Reason, format string, args ...any) {
		f := Finding{Reason: reason, Blocks: blocks, Text: fmt.Sprintf(format, args...)}
		if blocks {
			v.Findings = append(v.Findings, f)
		} else {
			notes = append(notes, f)
		}
	}
	if claimed {
		find(true, OtherPrefetcher, "another prefetcher helps process %d already: end that one first, or leave it to it", h.PID)
	}
	for _, f := range h.WhereWeights() {
		find(f.Blocks, f.Reason, "%s", f.Text)
	}
	for i := range h.Files {
		f := &h.Files[i]
		name := visible.Line(filepath.Base(f.Path))
		// A file of which a token reads nothing is in nobody's way.
		read := f.PerToken + f.Routed
		useless, reads := read <= h.Weights.Total()/negligible, ""
		if !useless {
			reads = fmt.Sprintf(", and tokens read %s of it", size(read))
		}
		switch {
		case f.Changed:
			find(h.Mode == ModeNone, FileChanged, "%s cannot be read as the file that the process maps: it was replaced, cut off or is damaged; restart llama.cpp with the model that is there now", name)
			continue
		case f.Store == StoreMemory:
			find(!useless, InMemory, "%s lies on %s%s: its pages are memory already, and paging them out would swap; put the model on a disk", name, f.System, reads)
		case f.Store == StoreHuge:
			find(!useless, HugeTLB, "%s lies on %s%s: huge pages are never paged out; put the model on a disk", name, f.System, reads)
		case f.Store == StoreDAX:
			find(!useless, DAX, "%s is mapped from persistent memory without a page cache (DAX)%s: there is nothing to keep; mount the file system with dax=never", name, reads)
		case !f.PageOut:
			find(!useless, NoPageOut, "this process may not page out %s%s: run as root, or as the owner of the file", name, reads)
		default:
			v.PerToken += f.PerToken
			v.Routed += f.Routed
			if f.Store == StoreNetwork {
				find(false, Network, "%s lies on %s: what is read again comes from a server, or from another program", name, f.System)
			}
		}
	}
	all := v.PerToken + v.Routed // any token may read any expert
	helpable := all > h.Weights.Total()/negligible
	if helpable { // one file that is out of reach does not matter while others are not
		v.Findings, notes = keepBlocking(v.Findings, notes)
	}
	if h.Locked > 0 && h.Locked >= all && helpable {
		find(true, Locked, "the process has locked %s in memory: nothing is read again; to let it share, start llama.cpp without --mlock", size(h.Locked))
	}
	if helpable && len(h.Others) > 0 {
		var names []string
		for _, o := range h.Others {
			names = append(names, strings.TrimSpace(strconv.Itoa(o.PID)+" "+visible.Line(o.Name)))
		}
		find(true, Shared, "the model is in use by other processes, too (%s): the kernel does not page out what two processes map; end them, or give each a file of its own", strings.Join(names, ", "))
		last := &v.Findings[len(v.Findings)-1]
		for _, o := range h.Others {
			last.PIDs = append(last.PIDs, o.PID)
		}
	}
	if helpable && v.Routed > h.Weights.Total()/negligible {
		if v.PerToken == 0 { // a helper follows a token by what all of them read
			find(true, RoutedExperts, "of the file only routed experts are read (%s), and nothing that every token reads: they are left to the kernel", size(v.Routed))
		} else {
			find(false, RoutedExperts, "%s of the weights belong to routed experts: those that a router chooses are read as soon as it has, and kept as far as there is room", size(v.Routed))
		}
	}
	v.Keep, v.Experts = v.PerToken, v.Routed
	if room >= 0 {
		v.Keep = min(room, v.PerToken) // that comes first
		v.Experts = min(room-v.Keep, v.Routed)
		if helpable && room >= all {
			find(true, Fits, "all %s that tokens read of the model fit in memory, where there is room for %s", size(all), size(room))
		}
	}
	v.Helps = len(v.Findings) == 0 && helpable
	if !v.Helps && len(v.Findings) == 0 { // all of it is too small to matter
		find(true, Negligible, "tokens read only %s of the model's file", size(all))
	}
	v.Findings = append(v.Findings, notes...)
	return v
}

// keepBlocking moves what is said of single files to the notes, as the rest can be helped.
func keepBlocking(blocking, notes []Finding) (still, all []Finding) {
	for _, f := range blocking {
		switch f.Reason {
		case InMemory, HugeTLB, DAX, NoPageOut:
			f.Blocks = false
			notes = append(notes, f)
		default:
			still = append(still, f)
		}
	}
	return still, notes
}

// WhereWeights says of weights that are not read from a mapped file where they are instead. A finding blocks if a token reads nothing else that counts. The reasons
// are NoModel, OnDevice, Copied and Undecided.
func (h *Holding) WhereWeights() (findings []Finding) {
	find := func(blocks bool, reason Reason, format string, args ...any) {
		findings = append(findings, Finding{Reason: reason, Blocks: blocks, Text: fmt.Sprintf(format, args...)})
	}
	all := h.Weights.Total()
	much := func(n int64) bool { return n > all/negligible }
	if h.Mode == ModeNone && slices.ContainsFunc(h.Files, func(f File) bool { return f.Changed }) {
		return nil // whatever it computes with, it is in that file
	}
	if h.Mode == ModeNone {
		find(true, NoModel, "the process maps no GGUF file, and no weights were found in its memory: it is no llama.cpp, or has not loaded its model yet")
		return findings
	}
	nothing := !much(h.read())
	if much(h.Weights.Device) {
		find(nothing && h.Weights.Device >= h.Weights.Copied && h.Mode != ModeUnknown, OnDevice, "%s of %s of weights are on a GPU: only what the processor reads from the file can be helped", size(h.Weights.Device), size(all))
	}
	switch {
	case !much(h.Weights.Copied):
	case len(h.Files) == 0:
		find(nothing, Copied, "%s of weights were read into the process's own memory, and no model file is mapped: start llama.cpp without --no-mmap or --load-mode none|dio, and with --no-repack", size(h.Weights.Copied))
	default:
		find(nothing, Copied, "%s of %s of weights are copies in the process's own memory, made in another layout when they were loaded: start llama.cpp with --no-repack", size(h.Weights.Copied), size(all))
	}
	if much(h.Weights.Unknown) {
		find(nothing, Undecided, "where %s of %s of weights are is not known: llama.cpp may still be loading, or its memory may not be read (run as root); ask again", size(h.Weights.Unknown), size(all))
	}
	return findings
}

func size(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
