package ebpf

// This file tests what is said of a machine on which probes cannot work.

import (
	"strings"
	"testing"

	"tensorcast/event"
	"tensorcast/internal/testenv"
)

// Each thing that is missing is told once, with what to do. What follows from it is not told.
func TestObstacles(t *testing.T) {
	capability := func(name string, state State) Finding { return Finding{Name: name, State: state, Use: "work"} }
	all := []Finding{capability("CAP_BPF", Yes), capability("CAP_PERFMON", Yes), capability("CAP_SYS_ADMIN", No)}
	none := []Finding{capability("CAP_BPF", No), capability("CAP_PERFMON", No), capability("CAP_SYS_ADMIN", No)}
	features := func(changed ...Finding) (list []Finding) {
		list = append(list, changed...)
		for _, name := range []string{
			"BTF", "ring buffer", "bpf_find_vma", "bpf_loop", "uprobe_multi", "perf uprobes", "programs of op",
		} {
			list = append(list, Finding{Name: name, State: Yes}) // the first of a name counts
		}
		return list
	}
	no := func(name string) Finding { return Finding{Name: name, State: No, Detail: "because"} }
	unknown := Finding{Name: "programs of op", State: Unknown}
	for name, tc := range map[string]struct {
		r    Report
		want []string // parts of each obstacle's text
	}{
		"nothing":     {Report{Capabilities: all, Features: features()}, nil},
		"not tried":   {Report{Capabilities: all, refused: "refused by a seccomp filter", remedy: "allow bpf"}, nil},
		"an old way":  {Report{Capabilities: all, Features: features(no("uprobe_multi"))}, nil},
		"op+io alone": {Report{Capabilities: all, Features: features(no("filemap:mm_filemap_add_to_page_cache"))}, nil},
		"capabilities": {Report{Capabilities: none, Features: features(unknown)},
			[]string{"lacks CAP_BPF and CAP_PERFMON: run this as root"}},
		"user namespace": {Report{confined: true, Capabilities: none, Features: features(no("BTF"), unknown)},
			[]string{"in a user namespace (a container without root), where the kernel permits no eBPF: run this on"}},
		"seccomp": {Report{
			Capabilities: all, Features: features(unknown), refused: "refused by a seccomp filter", remedy: "allow bpf",
		}, []string{"probes are refused by a seccomp filter: allow bpf"}},
		"refused": {Report{Capabilities: all, Features: features(unknown)}, []string{"refuses probes though"}},
		"lockdown": {Report{Capabilities: all, Settings: lockedDown(true)},
			[]string{"locked down (confidentiality): boot"}},
		"not so much": {Report{Capabilities: all, Settings: lockedDown(false)}, nil},
		"BTF": {Report{Capabilities: all, Features: features(no("BTF"), no("programs of op"))},
			[]string{"shows no type information: mount sysfs"}},
		"old": {Report{Capabilities: all, Features: features(no("bpf_find_vma"), no("bpf_loop"))},
			[]string{"has no bpf_find_vma: use Linux 5.17"}},
		"no uprobes": {Report{Capabilities: all, Features: features(no("uprobe_multi"), no("perf uprobes"))},
			[]string{"attaches no uprobes (because): use one built with CONFIG_UPROBE_EVENTS=y"}},
		"PID namespace": {Report{Capabilities: all, Features: features(
			Finding{Name: "PID namespace", State: No, Detail: event.ErrPIDNamespace.Error()}, no("programs of op"))},
			[]string{"cannot tell the process ids of this PID namespace (a container): run this on the host"}},
		"programs": {Report{Capabilities: all, Features: features(no("programs of op"))},
			[]string{"does not take the probes: because: `tracer doctor`"}},
	} {
		got := tc.r.obstacles()
		if len(got) != len(tc.want) {
			t.Errorf("%s: %+v, want %q", name, got, tc.want)
			continue
		}
		for i, want := range tc.want {
			if text := got[i].What + ": " + got[i].Do; !strings.Contains(text, want) || got[i].Do == "" {
				t.Errorf("%s: %q, want %q in it, and what to do", name, text, want)
			}
		}
	}
}

// lockedDown is the setting of a kernel that is locked down, or is not.
func lockedDown(confidential bool) []Setting {
	return []Setting{{Name: "lockdown", Value: "none integrity [confidentiality]", Matters: confidential}}
}

// On a machine where the other tests trace, nothing stands in the way.
func TestNoObstacles(t *testing.T) {
	testenv.NeedRoot(t)
	for name, find := range map[string]func() ([]Obstacle, error){"all": FindObstacles, "quick": FindQuickObstacles} {
		if all, err := find(); err != nil || len(all) > 0 {
			t.Errorf("%s: %+v, %v; want none", name, all, err)
		}
	}
}
