package main

// This file finds out for which machine moe replays: how long a token computes, and what the disk reads.

import (
	"context"
	"io"
	"time"

	"tensorcast/internal/tabular"
	"tensorcast/moe/replay"
	"tensorcast/report/gather"
)

// machine is what moe replays with, and how that is known.
type machine struct {
	Compute       time.Duration `json:"compute_ns"` // of a token
	ComputeFrom   string        `json:"compute_from"`
	Bandwidth     float64       `json:"disk_bytes_per_second"`
	BandwidthFrom string        `json:"disk_from"`
}

// lines are the machine in words.
func (m *machine) lines() tabular.Lines {
	return tabular.Lines{
		"a token computes for " + tabular.Number(1000*m.Compute.Seconds()) + " ms: " + m.ComputeFrom,
		"the disk reads " + tabular.Number(m.Bandwidth/(1<<30)) + " GiB/s: " + m.BandwidthFrom,
	}
}

// machine is what the flags say, where they were given, else what the capture tells, else the flags' defaults.
func (o *moeOptions) machine(ctx context.Context, in *routedInput) (*machine, error) {
	m := &machine{
		Compute: o.compute, ComputeFrom: "as --compute says",
		Bandwidth: float64(o.bandwidth), BandwidthFrom: "as --bandwidth says",
	}
	if o.hasCompute && o.hasBandwidth {
		return m, nil
	}
	var outlook gather.Outlook
	var computes gather.Compute
	if in.capture != nil {
		st, err := in.study(ctx)
		if err != nil {
			return nil, err
		}
		if st.sums.Generates() {
			computes = st.compute()
		}
		outlook = *st.sums.Outlook(in.capture.Meta, computes)
	}
	if !o.hasCompute {
		m.ComputeFrom = "assumed, as nothing tells; --compute says it"
		if tokens := outlook.TokensPerStep; computes.Expected > 0 && tokens > 0 {
			m.Compute = time.Duration(float64(computes.Expected) / tokens)
			m.ComputeFrom = "as the capture has it, " + computes.Source()
		}
	}
	if !o.hasBandwidth {
		m.BandwidthFrom = "assumed, as nothing tells; --bandwidth says it"
		if outlook.Bandwidth >= replay.MinBandwidth {
			m.Bandwidth, m.BandwidthFrom = outlook.Bandwidth, "as tracer has measured it for the capture"
			if outlook.DiskRate > outlook.Probed {
				m.BandwidthFrom = "as the capture's tokens had it"
			}
		}
	}
	return m, nil
}

// study sums up the context of a capture that is analysed. What is to be said of the capture was said before.
func (in *routedInput) study(ctx context.Context) (*study, error) {
	l, err := load(ctx, &options{capture: in.name, context: int(in.context)}, io.Discard)
	if err != nil {
		return nil, err
	}
	st := &study{in: l}
	return st, st.collect(ctx)
}
