package monitor

// This file writes reports as metrics, in Prometheus's text format.

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"tensorcast/prefetch"
)

// metricPrefix begins the names of all metrics.
const metricPrefix = "tensorcast_prefetchd_"

// metric is a sample in Prometheus's text format, version 0.0.4. It is a counter if its name ends with "_total",
// and a gauge otherwise.
type metric struct {
	name, help string
	value      float64
	known      bool
	activity   prefetch.Activity // value of the label "phase"; empty: there is no such label
	everybody  bool              // it is of a prefetchd without a target, too
}

// WriteMetrics writes reports in Prometheus's text format. Each sample has the labels target_pid, command, unit and
// model, of which those are left out that are not known. The command, the unit and the model's name are what the
// target, or who has started it, chose. What is not known is left out. Without any report it says that nobody is up.
func WriteMetrics(w io.Writer, reports ...Report) error {
	var text strings.Builder
	described := ""
	write := func(m *metric, labels string) {
		if described != m.name {
			kind := "gauge"
			if strings.HasSuffix(m.name, "_total") {
				kind = "counter"
			}
			fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %s %s\n", m.name, m.help, m.name, kind)
			described = m.name
		}
		fmt.Fprintf(&text, "%s%s %s\n", m.name, labels, strconv.FormatFloat(m.value, 'g', -1, 64))
	}
	for i, m := range metricsOf(&Report{}) {
		if m.everybody && len(reports) == 0 {
			m.value = 0
			write(&m, "")
		}
		for j := range reports {
			r := &reports[j]
			if m := metricsOf(r)[i]; m.known && (m.everybody || r.Target != 0 && !r.down) {
				write(&m, r.labels(&m))
			}
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// labels are those of a sample, in braces.
func (r *Report) labels(m *metric) string {
	var all []string
	add := func(name, value string) {
		if value != "" {
			all = append(all, name+`="`+escapeLabel(value)+`"`)
		}
	}
	if r.Target != 0 {
		add("target_pid", strconv.Itoa(r.Target))
	} else {
		add("prefetchd_pid", strconv.Itoa(r.PID))
	}
	add("command", r.Command)
	add("unit", r.Unit)
	if len(r.Models) > 0 {
		add("model", path.Base(r.Models[0]))
	}
	add("phase", string(m.activity))
	if m.everybody {
		add("role", r.role())
	}
	return "{" + strings.Join(all, ",") + "}"
}

// escapeLabel writes a label's value as the format wants it: valid UTF-8 in which backslashes, quotation marks and ends
// of lines are escaped.
func escapeLabel(value string) string {
	value = strings.ToValidUTF8(value, "\uFFFD")
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(value)
}

// role says what a prefetchd is for: "target" for one that helps a target, "auto" and "wait" for one that looks for
// targets, or for one.
func (r *Report) role() string {
	switch {
	case r.Target != 0:
		return "target"
	case r.Search != nil && !r.Search.All:
		return "wait"
	}
	return "auto"
}

// Down returns, for an error of List, a report on each prefetchd that could not be asked, although somebody is at its
// socket: it hangs, or answers nonsense. WriteMetrics says of these only that they are not up.
func Down(err error) (all []Report) {
	if joined, is := err.(interface{ Unwrap() []error }); is {
		for _, e := range joined.Unwrap() {
			all = append(all, Down(e)...)
		}
		return all
	}
	var failed *askError
	if !errors.As(err, &failed) {
		return nil
	}
	r := Report{down: true}
	name, isSearch := strings.CutPrefix(strings.TrimSuffix(path.Base(failed.path), suffix), searchPrefix)
	pid, wrong := strconv.Atoi(name)
	switch {
	case wrong != nil || pid <= 0: // no prefetchd gives its socket such a name
		return nil
	case isSearch:
		r.PID = pid
	default:
		r.Target = pid
	}
	return []Report{r}
}

// metricsOf lists the metrics of a report. Each report has the same ones in the same order.
func metricsOf(r *Report) []metric {
	s := &r.Status
	sample := func(what, help string, value float64, known bool) metric {
		return metric{name: metricPrefix + what, help: help, value: value, known: known}
	}
	count := func(what, help string, n int64) metric { return sample(what, help, float64(n), true) }
	known := func(what, help string, n int64) metric { return sample(what, help, float64(n), n >= 0) }
	up := count("up", "1 for a prefetchd that answers, 0 for one that does not, and 0 without labels if there is none.", 1)
	if up.everybody = true; r.down {
		up.value = 0
	}
	all := []metric{
		up,
		sample("start_time_seconds", "When prefetchd began to help the target, in seconds since 1970.",
			float64(r.Began.UnixMilli())/1000, !r.Began.IsZero()),
		count("kept_bytes", "Bytes of the model that are kept in memory for the target.", s.Held),
		count("wanted_bytes", "Bytes of the model that are to be kept.", s.Wanted),
		count("token_bytes", "Bytes of the model that a token reads.", s.PerToken),
		count("model_bytes", "Bytes of the model that would be in memory if there were room for all of it.", s.Needs),
		count("room_bytes", "Bytes of memory that there are for the model, and for others that are read at the same time.",
			s.Room),
		count("experts_bytes", "Bytes of a mixture's experts in memory, as far as is known.", s.Experts),
		count("streamed_bytes_per_token", "Bytes that were read ahead for a token lately.", s.Streamed),
		count("speculated_bytes_per_token",
			"Bytes of experts that were read for a token before they were chosen, lately.", s.Early),
		count("warmed_bytes_total",
			"Bytes that fit, that others took, and that were read back while the target was idle.", s.Warmed),
		count("read_ahead_bytes_total",
			"Bytes of the model that were read ahead of their use, or when a router had chosen them.", s.ReadAhead),
		count("taken_bytes_total", "Bytes that were kept, and that the kernel took for others.", s.Taken),
		sample("tokens_per_second", "Tokens per second lately, with help.", s.Now, s.Now > 0),
		sample("tokens_per_second_before",
			"Tokens per second without help, when that was measured last.", s.Before, s.Before > 0),
		sample("tokens_per_second_bound",
			"Tokens per second that nobody could pass with this memory and this disk.", s.Bound, s.Bound > 0),
		count("tokens_total", "Tokens generated with help.", int64(s.Tokens)),
		count("prompt_tokens_total", "Tokens of prompts that were read with help.", int64(s.PromptTokens)),
		count("decodes_total", "Decodes with help, of one token, several or a prompt.", int64(s.Decodes)),
		known("target_major_faults_total", "Major faults of the target since it was started.", r.Faults),
		known("target_read_bytes_total", "Bytes that the target has read from disk since it was started, "+
			"mostly by its faults.", r.TargetRead),
		known("own_read_bytes_total", "Bytes that prefetchd has read from disk.", r.OwnRead),
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
