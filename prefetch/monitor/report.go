package monitor

// This file defines what a prefetchd reports of itself, as JSON and as metrics.

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"tensorcast/prefetch"
)

// Report is what a prefetchd does. Sizes are bytes.
type Report struct {
	PID    int `json:"pid"`        // of prefetchd
	Target int `json:"target_pid"` // whom it helps; 0: it looks for a target, see Search
	// Command is the name of the target's program, as the kernel has it (15 bytes). The target can choose it.
	Command string `json:"target_command"`
	// Models are the paths of the model files that the target maps. The target can choose these, too.
	Models []string        `json:"target_models"`
	Began  time.Time       `json:"began"` // when prefetchd began
	Status prefetch.Status `json:"status"`
	// IdleSince is when the target stopped computing, if that is some seconds ago. It is zero while it computes,
	// and where that is not known.
	IdleSince time.Time `json:"target_idle_since,omitzero"`
	// Search is what a prefetchd without a target looks for. It is nil for one with a target.
	Search   *Search        `json:"search,omitempty"`
	Faults   int64          `json:"target_major_faults"` // since the target was started; -1: it has ended
	OwnBytes int64          `json:"own_bytes"`           // prefetchd's anonymous memory
	Waits    MemoryPressure `json:"host_memory_pressure"`
	// TargetRead and OwnRead are how many bytes the target and prefetchd have had read from disk since they were
	// started (read_bytes of /proc/PID/io): by the target's faults, and for help. -1: that is not known.
	TargetRead int64 `json:"target_read_bytes"`
	OwnRead    int64 `json:"own_read_bytes"`
	// Paused says that somebody wants the target to be left alone for now.
	Paused bool `json:"paused"`
	// Detail is what a picture needs. It is nil unless it was asked for, and is not older than some seconds.
	Detail *prefetch.Detail `json:"detail,omitempty"`
}

// Search says what a prefetchd looks for that has no target itself.
type Search struct {
	Names []string `json:"names"` // of the processes that it looks for; empty: all that compute with ggml
	All   bool     `json:"all"`   // it helps all of them (--auto), and not only the first
	// Helped are those that a prefetchd of their own helps, and Waiting those that wait until one of them has ended.
	Helped  []Process `json:"helped"`
	Waiting []Process `json:"waiting"`
}

// Process is a process that was found. It chooses its name itself.
type Process struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
}

// MemoryPressure is the share of the last ten seconds in which processes of the machine waited for memory, in percent
// (/proc/pressure/memory, Linux 4.20). -1 means that the kernel does not say.
type MemoryPressure struct {
	Some float64 `json:"some_avg10"` // at least one process waited
	Full float64 `json:"full_avg10"` // all processes waited
}

// lookUp fills in what is only known when somebody asks: what /proc says of the target and of this process.
func (r *Report) lookUp() {
	r.Faults, r.Waits = -1, MemoryPressure{-1, -1}
	r.TargetRead, r.OwnRead = readBytes(r.Target), readBytes(r.PID)
	if p, err := procfs.NewProc(r.Target); err == nil {
		if stat, err := p.Stat(); err == nil {
			r.Command, r.Faults = stat.Comm, int64(stat.MajFlt)
		}
	}
	if p, err := procfs.NewProc(r.PID); err == nil {
		if status, err := p.NewStatus(); err == nil {
			r.OwnBytes = int64(status.RssAnon)
		}
	}
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if psi, err := fs.PSIStatsForResource("memory"); err == nil && psi.Some != nil && psi.Full != nil {
			r.Waits = MemoryPressure{psi.Some.Avg10, psi.Full.Avg10}
		}
	}
}

// metric is a sample in Prometheus's text format, version 0.0.4. It is a counter if its name ends with "_total",
// and a gauge otherwise.
type metric struct {
	name, help string
	value      float64
	known      bool
	activity   prefetch.Activity // value of the label "phase"; empty: there is no such label
}

// WriteMetrics writes reports in Prometheus's text format, each sample with the label target_pid. What is not known
// is left out.
func WriteMetrics(w io.Writer, reports ...Report) error {
	var text strings.Builder
	described := ""
	for i := range metricsOf(&Report{}) {
		for j := range reports {
			if reports[j].Target == 0 { // all samples are of targets
				continue
			}
			m := metricsOf(&reports[j])[i]
			if !m.known {
				continue
			}
			if described != m.name {
				kind := "gauge"
				if strings.HasSuffix(m.name, "_total") {
					kind = "counter"
				}
				fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %s %s\n", m.name, m.help, m.name, kind)
				described = m.name
			}
			labels := fmt.Sprintf("target_pid=%q", strconv.Itoa(reports[j].Target))
			if m.activity != "" {
				labels += fmt.Sprintf(",phase=%q", m.activity)
			}
			fmt.Fprintf(&text, "%s{%s} %s\n", m.name, labels, strconv.FormatFloat(m.value, 'g', -1, 64))
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// metricsOf lists the metrics of a report. Each report has the same ones in the same order.
func metricsOf(r *Report) []metric {
	const name = "tensorcast_prefetchd_"
	s := &r.Status
	sample := func(what, help string, value float64, known bool) metric {
		return metric{name + what, help, value, known, ""}
	}
	count := func(what, help string, n int64) metric { return sample(what, help, float64(n), true) }
	all := []metric{
		count("kept_bytes", "Bytes of the model that are kept in memory for the target.", s.Held),
		count("wanted_bytes", "Bytes of the model that are to be kept.", s.Wanted),
		count("token_bytes", "Bytes of the model that a token reads.", s.PerToken),
		count("experts_bytes", "Bytes of a mixture's experts in memory, as far as is known.", s.Experts),
		count("streamed_bytes_per_token", "Bytes that were read ahead for a token lately.", s.Streamed),
		count("speculated_bytes_per_token",
			"Bytes of experts that were read for a token before they were chosen, lately.", s.Early),
		count("warmed_bytes_total",
			"Bytes that fit, that others took, and that were read back while the target was idle.", s.Warmed),
		sample("tokens_per_second", "Tokens per second lately, with help.", s.Now, s.Now > 0),
		sample("tokens_per_second_before",
			"Tokens per second without help, when that was measured last.", s.Before, s.Before > 0),
		sample("tokens_per_second_bound",
			"Tokens per second that nobody could pass with this memory and this disk.", s.Bound, s.Bound > 0),
		count("tokens_total", "Tokens generated with help.", int64(s.Tokens)),
		count("decodes_total", "Decodes with help, of one token, several or a prompt.", int64(s.Decodes)),
		sample("target_major_faults_total",
			"Major faults of the target since it was started.", float64(r.Faults), r.Faults >= 0),
		count("own_bytes", "Anonymous memory of prefetchd itself.", r.OwnBytes),
		sample("host_memory_waiting_some_percent",
			"Share of the last ten seconds in which a process of the machine waited for memory.",
			r.Waits.Some, r.Waits.Some >= 0),
		sample("host_memory_waiting_full_percent",
			"Share of the last ten seconds in which all processes waited for memory.",
			r.Waits.Full, r.Waits.Full >= 0),
	}
	for _, activity := range []prefetch.Activity{
		prefetch.Waiting, prefetch.Comparing, prefetch.Helping, prefetch.Giving, prefetch.Idle,
	} {
		m := sample("phase", "1 for what prefetchd is doing, 0 for what it is not.", 0, true)
		if m.activity = activity; s.Activity == activity {
			m.value = 1
		}
		all = append(all, m)
	}
	return all
}
