package trace

// This file tests that a capture of an earlier version can still be read.

import (
	"context"
	"testing"

	"tensorcast/trace/tables"
)

// A capture that an earlier version wrote opens and has the same content. It is of a model with
// experts, made with --detail op+io and --buffers.
func TestEarlierCapture(t *testing.T) {
	c, err := Open("testdata/capture-2")
	if err != nil {
		t.Fatal(err)
	}
	if c.Meta.Schema != SchemaVersion || !c.Meta.Complete || c.Meta.Tokens != 3 || c.Meta.Steps != 5 ||
		len(c.Meta.Models) != 1 || len(c.Structure) != 23 {
		t.Errorf("description %+v with %d tensors, want 3 tokens, 5 steps, 23 tensors", c.Meta, len(c.Structure))
	}
	var accesses, routed, experts, buffers, phases int
	for a, err := range c.Accesses() {
		if err != nil {
			t.Fatal(err)
		}
		accesses++
		experts += len(a.Experts)
		if a.Bytes <= 0 || a.Offset <= 0 || a.Duration < 0 || a.Stall < 0 || a.Op == "" {
			t.Fatalf("access %+v, want an op, bytes, an offset, a duration and a stall", a)
		}
	}
	for r, err := range c.Routes() {
		if err != nil || r.Expert < 0 || r.Expert > 3 || r.Layer > 1 {
			t.Fatalf("%+v, %v; want r.Expert at least 0, r.Expert at most 3, r.Layer at most 1", r, err)
		}
		routed++
	}
	for s, err := range c.Steps() {
		if err != nil || s.End <= s.Begin {
			t.Fatalf("%+v, %v; want more than %v", s, err, s.Begin)
		}
		if s.Phase == tables.PhaseGeneration {
			phases++
		}
	}
	for b, err := range c.Buffers() {
		if err != nil || b.Bytes <= 0 {
			t.Fatalf("%+v, %v; want more than 0", b, err)
		}
		buffers++
	}
	var fromDisk int64
	for p, err := range c.PageIns() {
		if err != nil {
			t.Fatal(err)
		}
		fromDisk += p.Bytes
	}
	rereads, err := c.Rereads(context.Background(), 10)
	if err != nil {
		t.Fatal(err)
	}
	if int64(accesses) != c.Meta.Rows || phases != 3 || experts == 0 || routed == 0 || buffers == 0 ||
		fromDisk != rereads.FirstBytes+rereads.RereadBytes || fromDisk < 100<<10 {
		t.Errorf("%d accesses of %d, %d generated tokens, %d experts, %d routes, %d buffers, %d bytes from disk, "+
			"of which %+v", accesses, c.Meta.Rows, phases, experts, routed, buffers, fromDisk, rereads)
	}
}
