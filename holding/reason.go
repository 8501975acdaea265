package holding

// This file judges whether keeping pages of the model's files in memory can make a process faster,
// and if not, says why.

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"tensorcast/internal/visible"
	"tensorcast/loadflags"
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
	FileDenied      Reason = "file denied"
	Network         Reason = "network"
	Readahead       Reason = "readahead"
)

// Finding is a reason that holds.
type Finding struct {
	Reason Reason `json:"reason"`
	Blocks bool   `json:"blocks"` // because of it there is nothing to win; otherwise it is mere information
	Text   string `json:"text"`   // one line: why, and what to do
	PIDs   []int  `json:"pids,omitempty"`
}

// Verdict says whether a helper could make the process faster.
type Verdict struct {
	Helps bool `json:"helps"`
	// Keep is how many of the PerToken bytes could be kept in memory, at most.
	Keep int64 `json:"keep"`
	// PerToken is how many bytes each token reads of the files, at most. Files that cannot be paged
	// out are left out.
	PerToken int64 `json:"per_token"`
	// Experts is how many of the Routed bytes could be kept besides, at most.
	Experts  int64     `json:"experts"`
	Routed   int64     `json:"routed"`   // bytes of routed experts in the files
	Findings []Finding `json:"findings"` // those that block come first
}

// Line is the verdict in one line.
func (v *Verdict) Line() string {
	switch {
	case v.Helps && v.Routed > 0:
		return fmt.Sprintf("would help: keeps about %s of the %s that every token reads, and %s of %s of experts",
			formatBytes(v.Keep), formatBytes(v.PerToken), formatBytes(v.Experts), formatBytes(v.Routed))
	case v.Helps:
		return fmt.Sprintf("would help: keeps about %s of the %s that a token reads", formatBytes(v.Keep),
			formatBytes(v.PerToken))
	}
	return "nothing to win: " + v.Findings[0].Text
}

// Judge decides whether a helper could make the process faster. room is how many bytes of the
// model's pages memory can hold, including those that are resident and without the caller's
// reserve; negative if that is not known. claimed says that another helper has claimed the process.
func (h *Holding) Judge(room int64, claimed bool) Verdict {
	j := judge{Holding: h}
	if claimed {
		j.add(true, OtherPrefetcher,
			"another prefetcher helps process %d already: end that one first, or leave it to it", h.PID)
	}
	for _, f := range h.WhereWeights() {
		if f.Reason == Copied {
			f.Text += h.weighCopies()
		}
		j.add(f.Blocks, f.Reason, "%s", f.Text)
	}
	for i := range h.Files {
		j.addFile(&h.Files[i])
	}
	all := j.v.PerToken + j.v.Routed // any token may read any expert
	helpable := h.isMuch(all)
	if helpable {
		j.unblockFiles()
		j.addProcesses(all)
		j.addExperts()
		j.addReadahead(all, room)
	}
	v := &j.v
	v.Keep, v.Experts = v.PerToken, v.Routed
	if room >= 0 {
		v.Keep = min(room, v.PerToken) // that comes first
		v.Experts = min(room-v.Keep, v.Routed)
		if helpable && room >= all {
			j.add(true, Fits, "all %s that tokens read of the model fit in memory, where there is room for %s",
				formatBytes(all), formatBytes(room))
		}
	}
	v.Helps = len(v.Findings) == 0 && helpable
	if !v.Helps && len(v.Findings) == 0 { // all of it is too small to matter
		j.add(true, Negligible, "tokens read only %s of the model's file", formatBytes(all))
	}
	v.Findings = append(v.Findings, j.notes...)
	return *v
}

// JudgeInGroup is Judge for a process whose control group, or one above it, bounds the room. What is in memory beyond
// the room is paid for by other groups then.
func (h *Holding) JudgeInGroup(room int64, claimed bool) Verdict {
	v := h.Judge(room, claimed)
	if v.Helps && h.isAllResident() {
		v.Helps = false
		v.Findings = slices.Insert(v.Findings, 0, Finding{Reason: Fits, Blocks: true, Text: fmt.Sprintf(
			"all of the model is in memory already, though there is room for %s only: another control group has "+
				"read it, and pays for it; ask again if that group gives it up", formatBytes(room))})
	}
	return v
}

// isAllResident reports whether all files of the model are in memory, but for tables, of which it is enough that their
// rows are read when they are looked up.
func (h *Holding) isAllResident() bool {
	for i := range h.Files {
		f := &h.Files[i]
		rest := f.Size - f.Tables
		if f.Tables > 0 {
			rest -= tableEnds // a table's first and last page have other weights, too
		}
		if f.Changed || f.Size == 0 || f.TablesResident < 0 || f.Resident-f.TablesResident < rest {
			return false
		}
	}
	return len(h.Files) > 0
}

// tableEnds is more than the pages have that a file's tables share with other weights, in bytes.
const tableEnds = 256 << 10

// judge is the state of Judge.
type judge struct {
	*Holding
	v     Verdict   // with the findings that block
	notes []Finding // the others
}

// add adds a finding.
func (j *judge) add(blocks bool, reason Reason, format string, args ...any) {
	f := Finding{Reason: reason, Blocks: blocks, Text: fmt.Sprintf(format, args...)}
	if blocks {
		j.v.Findings = append(j.v.Findings, f)
	} else {
		j.notes = append(j.notes, f)
	}
}

// addFile adds what speaks against helping with a file, or else what tokens read of it. Findings do
// not block if tokens read next to nothing of the file.
func (j *judge) addFile(f *File) {
	name := visible.Line(filepath.Base(f.Path))
	read := f.PerToken + f.Routed
	matters, reads := j.isMuch(read), ""
	if matters {
		reads = fmt.Sprintf(", and tokens read %s of it", formatBytes(read))
	}
	switch {
	case f.Denied:
		j.add(j.Mode == ModeNone, FileDenied,
			"%s may not be read by this process, which is not the one that mounted it: mount FUSE (sshfs, bindfs, "+
				"rclone) with the option allow_other or allow_root, or NFS with no_root_squash on the server; or copy "+
				"the model to a disk",
			name)
	case f.Changed:
		j.add(j.Mode == ModeNone, FileChanged, "%s cannot be read as the file that the process maps: %s", name,
			visible.Line(f.Problem))
	case f.Store == StoreMemory:
		j.add(matters, InMemory,
			"%s lies on %s%s: its pages are memory already, and paging them out would swap; put the model on a disk",
			name, f.System, reads)
	case f.Store == StoreHuge:
		j.add(matters, HugeTLB, "%s lies on %s%s: huge pages are never paged out; put the model on a disk", name,
			f.System, reads)
	case f.Store == StoreDAX:
		j.add(matters, DAX,
			"%s is mapped from persistent memory without a page cache (DAX)%s: there is nothing to keep; mount "+
				"the file system with dax=never",
			name, reads)
	case !f.PageOut:
		j.add(matters, NoPageOut, "this process may not page out %s%s: run as root, or as the owner of the file",
			name, reads)
	default:
		j.v.PerToken += f.PerToken
		j.v.Routed += f.Routed
		if f.Store == StoreNetwork {
			j.add(false, Network, "%s lies on %s: what is read again comes from a server, or from another program",
				name, f.System)
		}
	}
}

// unblockFiles turns what blocks because of single files into notes, because other files can be helped.
func (j *judge) unblockFiles() {
	var still []Finding
	for _, f := range j.v.Findings {
		switch f.Reason {
		case InMemory, HugeTLB, DAX, NoPageOut:
			f.Blocks = false
			j.notes = append(j.notes, f)
		default:
			still = append(still, f)
		}
	}
	j.v.Findings = still
}

// addProcesses adds what keeps pages in memory: a lock, or other processes. all is how many bytes
// tokens read of the files.
func (j *judge) addProcesses(all int64) {
	if j.Locked > 0 && j.Locked >= all {
		j.add(true, Locked,
			"the process has locked %s in memory: nothing is read again; to let it share, %s",
			formatBytes(j.Locked), j.program.Advise(loadflags.Unlock))
	}
	if len(j.Others) == 0 {
		return
	}
	var names []string
	for _, o := range j.Others {
		names = append(names, strings.TrimSpace(strconv.Itoa(o.PID)+" "+visible.Line(o.Name)))
	}
	j.add(true, Shared,
		"the model is in use by other processes, too (%s): the kernel does not page out what two processes map; "+
			"end them, or give each a file of its own",
		strings.Join(names, ", "))
	last := &j.v.Findings[len(j.v.Findings)-1]
	for _, o := range j.Others {
		last.PIDs = append(last.PIDs, o.PID)
	}
}

// addExperts adds what routed experts mean for a helper.
func (j *judge) addExperts() {
	switch {
	case !j.isMuch(j.v.Routed):
	case j.v.PerToken == 0: // a helper follows a token by what all of them read
		j.add(true, RoutedExperts,
			"of the file only routed experts are read (%s), and nothing that every token reads: they are left to "+
				"the kernel",
			formatBytes(j.v.Routed))
	default:
		j.add(false, RoutedExperts,
			"%s of the weights belong to routed experts: those that a router chooses are read as soon as it has, "+
				"and kept as far as there is room",
			formatBytes(j.v.Routed))
	}
}

// largeReadahead is the readahead of a device, in bytes, from which faults of a process read many experts that nobody
// has asked for.
const largeReadahead = 1 << 20

// addReadahead adds that faults of the process read much around themselves, and that it is too late to change that. all
// is how many bytes tokens read of the files, room how many of them fit, -1 if that is not known.
func (j *judge) addReadahead(all, room int64) {
	for i := range j.Files {
		f := &j.Files[i]
		if !f.Closed || f.ReadAhead < largeReadahead {
			continue
		}
		var waste string
		switch {
		case j.isMuch(f.Routed):
			waste = "mostly experts that nobody asked for"
		case j.isMuch(f.PerToken) && room >= 0 && room < all/4*3:
			// Measured: nothing is lost where 0.85 of a dense model fit, and up to half of the speed where 0.5 do.
			waste = "which drives out weights that are needed sooner, as much less than the model fits"
		default:
			continue
		}
		j.add(false, Readahead,
			"each fault of the process reads up to %s around itself, %s, and it has closed the file, so that this "+
				"cannot be changed any more: tokens are faster if prefetchd begins before the model is loaded "+
				"(--wait or --exec), or with --readahead inject",
			formatBytes(2*f.ReadAhead), waste)
		return
	}
}

// weighCopies says what copies of weights cost and gain here, and what to do if they are in the way. It goes on from
// the text of a finding.
func (h *Holding) weighCopies() string {
	if h.isCopying() {
		return fmt.Sprintf(": it is still copying them (%s by now); if they do not fit in memory, %s",
			formatBytes(h.Own), h.AdviseMapped())
	}
	if h.Swapped > h.Weights.Total()/negligible {
		return fmt.Sprintf(": they are too large for the memory, and %s is swapped out; to read weights from the file "+
			"instead, %s", formatBytes(h.Swapped), h.AdviseMapped())
	}
	text := ": they are all in memory, where nothing is read again; leave it so"
	if len(h.Files) > 0 {
		text += ", because " + loadflags.LayoutGain
	}
	if _, resident := h.Unread(); resident > h.Weights.Total()/negligible {
		text += fmt.Sprintf("; %s of the file are in memory besides, are not read any more, and give way first",
			formatBytes(resident))
	}
	return text
}

// isCopying reports whether the process is still loading its weights: it has not even as much memory as they take.
func (h *Holding) isCopying() bool { return h.Own < h.Weights.Copied-h.Weights.Copied/negligible }

// AdviseMapped says how the program is started so that weights are read from a mapping of the file.
func (h *Holding) AdviseMapped() string {
	var changes []loadflags.Change
	if len(h.Files) == 0 {
		changes = append(changes, loadflags.MapFile)
	}
	if !h.program.Request().InLayout { // mapped weights may be copied, too
		changes = append(changes, loadflags.KeepLayout)
	}
	return h.program.Advise(changes...)
}

// WhereWeights says where weights are that are not read from a mapped file. A finding blocks if a
// token reads nothing else that counts. The reasons are NoModel, OnDevice, Copied and Undecided.
func (h *Holding) WhereWeights() (findings []Finding) {
	add := func(blocks bool, reason Reason, format string, args ...any) {
		findings = append(findings, Finding{Reason: reason, Blocks: blocks, Text: fmt.Sprintf(format, args...)})
	}
	all, much := h.Weights.Total(), h.isMuch
	if h.Mode == ModeNone && slices.ContainsFunc(h.Files, func(f File) bool { return f.Changed }) {
		return nil // the weights that it computes with are in that file
	}
	if h.Mode == ModeNone {
		if h.Inside != "" {
			add(true, NoModel, "the process maps no GGUF file, but %s", h.Inside)
			return findings
		}
		add(true, NoModel,
			"the process maps no GGUF file, and no weights were found in its memory: it is no llama.cpp, or has "+
				"not loaded its model yet")
		return findings
	}
	nothing := !much(h.bytesRead())
	if much(h.Weights.Device) {
		blocks := nothing && h.Weights.Device >= h.Weights.Copied && h.Mode != ModeUnknown
		add(blocks, OnDevice,
			"%s of %s of weights are on a GPU: only what the processor reads from the file can be helped",
			formatBytes(h.Weights.Device), formatBytes(all))
	}
	switch {
	case !much(h.Weights.Copied):
	case len(h.Files) == 0:
		add(nothing, Copied,
			"%s of weights were read into the process's own memory, and no model file is mapped",
			formatBytes(h.Weights.Copied))
	default:
		add(nothing, Copied,
			"%s of %s of weights are copies in the process's own memory, made in another layout when they were "+
				"loaded",
			formatBytes(h.Weights.Copied), formatBytes(all))
	}
	if much(h.Weights.Unknown) {
		add(nothing, Undecided,
			"where %s of %s of weights are is not known: llama.cpp may still be loading, or its memory may not "+
				"be read (run as root); ask again",
			formatBytes(h.Weights.Unknown), formatBytes(all))
	}
	return findings
}

// formatBytes writes a number of bytes for people.
func formatBytes(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
