package device

// This file compares what a device counts with what was counted by hand.

import (
	"encoding/csv"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestReport(t *testing.T) {
	d, path := start(t, Options{PoolBytes: 1 << 20, Workers: 3})
	c, err := dial(path, 1<<20, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	const rows, cols = 3, 7
	weights := make([]int8, rows*cols)
	for i := range 5 {
		weights[4*i] = 1
	}
	first := upload(t, c, rows, cols, weights)
	product := func(h uint64, n uint32) Completion {
		return c.do(Descriptor{Op: OpProduct, Handle: h, Rows: rows, Cols: cols, N: n, X: 4096, XStride: 8,
			Y: 8192, YStride: 12, XType: TypeInt8, YType: TypeInt32})
	}
	for range 2 {
		if r := product(first, 5); r.Status != 0 {
			t.Fatal(unix.Errno(-r.Status))
		}
	}
	time.Sleep(50 * time.Millisecond) // what the host does
	r := product(first, 1)
	if r.Status != 0 || r.Lanes == 0 {
		t.Fatalf("%+v", r)
	}
	s := d.Status()
	const vectors = 11
	if s.Products != 3 || s.Tokens != vectors || s.Ops != vectors*rows*cols || s.EffectiveOps != vectors*5 ||
		s.SkipRate != 16./21 {
		t.Errorf("%+v, want 3 products, %d tokens, 5 effective operations of %d for each", s, vectors, rows*cols)
	}
	// A product takes one cycle, as it has fewer operations than a cycle has lanes.
	if s.Lanes != uint64(r.Lanes) || s.Cycles != 3 {
		t.Errorf("%d lanes, %d cycles; want %d, 3", s.Lanes, s.Cycles, r.Lanes)
	}
	if s.WeightBytes != 3*r.Bytes || s.BytesPerToken != float64(3*r.Bytes)/vectors {
		t.Errorf("%d bytes of weights, %v for a token; want three times the %d of a product", s.WeightBytes,
			s.BytesPerToken, r.Bytes)
	}
	if s.HostTime < 0.05 || s.HostTime > 1 || s.FabricTime <= 0 ||
		math.Abs(s.TokensPerSecond*(s.HostTime+s.FabricTime)-vectors) > 1e-6 {
		t.Errorf("%v s of the host, %v s of products, %v tokens/s; want 0.05 to 1 s of the host, and %d tokens in both",
			s.HostTime, s.FabricTime, s.TokensPerSecond, vectors)
	}
	if want := 1e-12 * (0.03*5*vectors + 160*float64(s.WeightBytes)); math.Abs(s.Energy-want) > 1e-18 {
		t.Errorf("energy %v, want %v", s.Energy, want)
	}
	// A pause does not count as time of the host.
	time.Sleep(maxHostPause + 50*time.Millisecond)
	if r := product(first, 1); r.Status != 0 {
		t.Fatal(unix.Errno(-r.Status))
	}
	if after := d.Status(); after.HostTime-s.HostTime > 0.5 {
		t.Errorf("a pause of a second counts as %v s of the host, want 0", after.HostTime-s.HostTime)
	}
}

func TestReportFormats(t *testing.T) {
	s := Status{Seconds: 2, Products: 7, Tokens: 4, ProductNanos: 1e9, HostNanos: 1e9, Ops: 8, Zeros: 2,
		residencyCounts: residencyCounts{Evictions: 9}}
	s.derive()
	var b strings.Builder
	if err := s.WriteCSV(&b); err != nil {
		t.Fatal(err)
	}
	table, err := csv.NewReader(strings.NewReader(b.String())).ReadAll()
	if err != nil || len(table) != 2 {
		t.Fatalf("%q: %v", b.String(), err)
	}
	values := map[string]string{}
	for i, name := range table[0] {
		if _, err := strconv.ParseFloat(table[1][i], 64); err != nil || values[name] != "" {
			t.Errorf("%s is %q: %v", name, table[1][i], err)
		}
		values[name] = table[1][i]
	}
	b.Reset()
	if err := s.WriteMetrics(&b); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"tokens_per_second": "2", "skip_rate": "0.25",
		"effective_ops_total": "6", "evictions_total": "9", "products_total": "7"} {
		kind := "gauge"
		if strings.HasSuffix(name, "_total") {
			kind = "counter"
		}
		if values[name] != want || !strings.Contains(b.String(),
			fmt.Sprintf("# TYPE tensorcast_fabric_%[1]s %[2]s\ntensorcast_fabric_%[1]s %[3]s\n", name, kind, want)) {
			t.Errorf("%s: %q in CSV, want %q; for Prometheus:\n%s", name, values[name], want, b.String())
		}
	}
	if n := strings.Count(b.String(), "\n"); n != 3*len(values) {
		t.Errorf("%d lines for Prometheus, want three for each of %d numbers", n, len(values))
	}
}
