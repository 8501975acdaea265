package device

// This file counts what a device does, and reports it.

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"tensorcast/fabric/kernel"
)

// jobCounts count the jobs of all clients.
type jobCounts struct {
	jobs, failed, cancelled      atomic.Uint64
	products, ops, zeros, cycles atomic.Uint64
	bytesRead, tokens, lanes     atomic.Uint64
	productNanos, hostNanos      atomic.Uint64
}

// add counts a job that is over.
func (j *jobCounts) add(d *Descriptor, c *Completion) {
	j.jobs.Add(1)
	switch {
	case c.Status == statusCancelled:
		j.cancelled.Add(1)
	case c.Status < 0:
		j.failed.Add(1)
	case d.Op == OpProduct:
		j.products.Add(1)
		j.ops.Add(c.Ops)
		j.zeros.Add(c.Zeros)
		j.bytesRead.Add(c.Bytes)
		j.productNanos.Add(c.Nanos)
		lanes := max(1, uint64(c.Lanes))
		j.lanes.Store(lanes)
		j.cycles.Add((c.Ops - c.Zeros + lanes - 1) / lanes)
	}
}

// maxHostPause is the longest time between two products that counts as the host's part of a token. In a longer
// one, nobody wanted a token.
const maxHostPause = time.Second

// The energy of an operation and of a byte read, in picojoules. They are those of M. Horowitz, Computing's
// energy problem (ISSCC 2014), at 45 nm: an addition of 8-bit integers, and a quarter of the 640 for 32 bits
// from DRAM.
const (
	opEnergy   = 0.03
	byteEnergy = 160
)

// Status has the counters of a device since its start. The fields of the last group follow from the others.
type Status struct {
	Seconds     float64 `json:"seconds"`
	Clients     int     `json:"clients"`
	ClientsEver uint64  `json:"clients_ever"`
	Workers     int     `json:"workers"`
	Kernels     string  `json:"kernels"` // the instructions that products are computed with: go, avx2 or avx512
	Jobs        uint64  `json:"jobs"`
	Failed      uint64  `json:"jobs_failed"`
	Cancelled   uint64  `json:"jobs_cancelled"`

	Products     uint64 `json:"products"`
	Ops          uint64 `json:"ops"`          // products of a trit and a value
	Zeros        uint64 `json:"zero_ops"`     // those whose trit is 0
	WeightBytes  uint64 `json:"weight_bytes"` // read by products
	ProductNanos uint64 `json:"product_ns"`
	HostNanos    uint64 `json:"host_ns"` // between products of a client, without pauses of more than a second
	// Tokens are the vectors of each client's weight that had most of them. If a client has one model, these
	// are its tokens.
	Tokens uint64 `json:"tokens"`
	Lanes  uint64 `json:"lanes_used"` // columns handled at a time, of the last product
	// Cycles are those of a device that handles as many columns in a cycle and needs none for a trit of 0. They
	// are rounded up for each product.
	Cycles uint64 `json:"fabric_cycles"`

	PoolUsed    int      `json:"pool_used"`
	PoolTotal   int      `json:"pool_total"`
	PoolExtents int      `json:"pool_extents"`
	PoolLargest int      `json:"pool_largest"`
	HostBytes   int      `json:"host_bytes"`
	Weights     int      `json:"weights"`
	Holding     *Holding `json:"holding,omitempty"` // of model files; nil if there never was anything to hold
	residencyCounts

	FabricTime      float64 `json:"fabric_time"`     // seconds of products
	HostTime        float64 `json:"host_time"`       // seconds of HostNanos
	TokensPerSecond float64 `json:"tokens_per_s"`    // in the sum of these times
	BytesPerToken   float64 `json:"bytes_per_token"` // of weights
	SkipRate        float64 `json:"skip_rate"`       // zero_ops / ops
	EffectiveOps    uint64  `json:"effective_ops"`   // ops - zero_ops
	// Energy is that of effective operations and of weights read, at published costs of each (0.03 and 160 pJ).
	// It is to compare, and not measured.
	Energy float64 `json:"energy_proxy_joule"`
}

// derive fills in the fields that follow from others.
func (s *Status) derive() {
	ratio := func(a, b float64) float64 {
		if b == 0 {
			return 0
		}
		return a / b
	}
	s.FabricTime, s.HostTime = float64(s.ProductNanos)/1e9, float64(s.HostNanos)/1e9
	s.TokensPerSecond = ratio(float64(s.Tokens), s.FabricTime+s.HostTime)
	s.BytesPerToken = ratio(float64(s.WeightBytes), float64(s.Tokens))
	s.SkipRate = ratio(float64(s.Zeros), float64(s.Ops))
	s.EffectiveOps = s.Ops - s.Zeros
	s.Energy = 1e-12 * (opEnergy*float64(s.EffectiveOps) + byteEnergy*float64(s.WeightBytes))
}

// Status reads the counters.
func (d *Device) Status() Status {
	j := &d.counts
	s := Status{
		Seconds: time.Since(d.begun).Seconds(), Workers: d.options.Workers, Kernels: kernel.Best().String(),
		Jobs: j.jobs.Load(), Failed: j.failed.Load(), Cancelled: j.cancelled.Load(),
		Products: j.products.Load(), Zeros: j.zeros.Load(), WeightBytes: j.bytesRead.Load(),
		ProductNanos: j.productNanos.Load(), HostNanos: j.hostNanos.Load(),
		Tokens: j.tokens.Load(), Lanes: j.lanes.Load(), Cycles: j.cycles.Load(),
	}
	s.Ops = max(j.ops.Load(), s.Zeros) // another product may be counted meanwhile
	d.mu.Lock()
	s.Clients, s.ClientsEver = d.clients, d.clientsEver
	d.mu.Unlock()
	s.Holding = d.holdings.status()
	st := d.store
	st.mu.Lock()
	defer st.mu.Unlock()
	s.PoolUsed, s.PoolTotal = st.pool.Used(), st.pool.Total()
	s.PoolExtents, s.PoolLargest = st.pool.Extents(), st.pool.Largest()
	s.HostBytes, s.Weights, s.residencyCounts = st.hostBytes, len(st.uploads), st.counts
	s.derive()
	return s
}

// metric is a number of a report. The names of counters end with total, as Prometheus has it.
type metric struct {
	name, help string
	value      float64
}

// metrics lists the numbers of a report.
func (s *Status) metrics() []metric {
	h := s.Holding
	if h == nil {
		h = &Holding{}
	}
	return []metric{
		{"running_seconds", "Time since the device was started.", s.Seconds},
		{"clients", "Programs that are connected.", float64(s.Clients)},
		{"workers", "Threads that multiply.", float64(s.Workers)},
		{"jobs_total", "Jobs that are over.", float64(s.Jobs)},
		{"jobs_failed_total", "Jobs that failed.", float64(s.Failed)},
		{"jobs_cancelled_total", "Jobs that were cancelled.", float64(s.Cancelled)},
		{"products_total", "Products that were computed.", float64(s.Products)},
		{"tokens_total",
			"Vectors of each client's weight that had most of them: tokens, if a client has one model.",
			float64(s.Tokens)},
		{"tokens_per_second", "Tokens by fabric time and host time.", s.TokensPerSecond},
		{"bytes_per_token", "Bytes of weights that products read for a token.", s.BytesPerToken},
		{"fabric_seconds_total", "Time of products.", s.FabricTime},
		{"host_seconds_total", "Time between products of a client, without pauses of more than a second.", s.HostTime},
		{"ops_total", "Products of a trit and a value.", float64(s.Ops)},
		{"effective_ops_total", "Those whose trit is not 0.", float64(s.EffectiveOps)},
		{"skip_rate", "Share of those whose trit is 0.", s.SkipRate},
		{"lanes_used", "Columns handled at a time, in the last product.", float64(s.Lanes)},
		{"cycles_total", "Effective operations by lanes, rounded up for each product.", float64(s.Cycles)},
		{"weight_bytes_total", "Bytes of weights that products read.", float64(s.WeightBytes)},
		{"moved_bytes_total", "Bytes of weights that were moved between host and pool.", float64(s.Moved)},
		{"residency_hits_total", "Planes that a product found in the pool.", float64(s.Hits)},
		{"residency_misses_total", "Planes that were brought back for a product.", float64(s.Misses)},
		{"residency_ahead_total", "Planes that were brought back before a product needed them.", float64(s.Ahead)},
		{"evictions_total", "Planes that were moved to the host.", float64(s.Evictions)},
		{"degraded_total", "Products that used fewer planes than their weights have.", float64(s.Degraded)},
		{"pool_used_bytes", "Bytes of weights in the pool.", float64(s.PoolUsed)},
		{"pool_bytes", "Bytes of the pool.", float64(s.PoolTotal)},
		{"host_bytes", "Bytes of weights on the host.", float64(s.HostBytes)},
		{"energy_proxy_joules_total",
			"Effective operations and bytes of weights at published costs of each, not measured.", s.Energy},
		{"held_tensors", "Tensors of model files that are held.", float64(h.Tensors)},
		{"held_below_bound_tensors",
			"Held tensors with more error than the profile allows, as memory is short.", float64(h.Below)},
		{"held_file_bytes", "Their bytes in the files.", float64(h.Bytes)},
		{"held_plane_bytes", "Bytes of their planes and factors.", float64(h.Planes)},
		{"held_room_bytes", "Bytes that planes and factors of what is held may take.", float64(h.Room)},
		{"let_go_total", "Tensors that were held, and whose memory others needed.", float64(h.GivenUp)},
		{"major_faults_total", "Pages of the device's memory that had to be read from disk.", float64(h.Faults)},
	}
}

// WriteMetrics writes the counters in Prometheus's text format, version 0.0.4.
func (s *Status) WriteMetrics(w io.Writer) error {
	var text strings.Builder
	for _, m := range s.metrics() {
		kind := "gauge"
		if strings.HasSuffix(m.name, "_total") {
			kind = "counter"
		}
		name := "tensorcast_fabric_" + m.name
		fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %[1]s %[3]s\n%[1]s %[4]s\n", name, m.help, kind, formatFloat(m.value))
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// WriteCSV writes a line of names and a line of values.
func (s *Status) WriteCSV(w io.Writer) error {
	var names, values []string
	for _, m := range s.metrics() {
		names, values = append(names, m.name), append(values, formatFloat(m.value))
	}
	c := csv.NewWriter(w)
	return c.WriteAll([][]string{names, values})
}

func formatFloat(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
