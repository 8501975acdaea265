package prefetch_test

// This file tests how a room is shared with the models of other targets.

import (
	"errors"
	"strings"
	"testing"

	"tensorcast/prefetch"
)

// A model that fits alone does not fit beside another one that is read at the same time. Then it is helped with its
// part of the room, and no more when the other one rests.
func TestNeighbours(t *testing.T) {
	var others int64
	opts := prefetch.Options{Neighbours: func(level string) int64 {
		if level == "" {
			t.Error("the level has no name")
		}
		return others
	}}
	r := newRig(t, 1.5, opts, nil)
	var stood *prefetch.StandBack
	if _, err := r.Run(1, r.cycle, 5); !errors.As(err, &stood) || stood.Reason != prefetch.Fits {
		t.Fatalf("alone: %v, want that it fits", err)
	}
	if got := r.Status(); got.Needs != r.cycle.Bytes() || got.Room < got.Needs || got.Level == "" {
		t.Errorf("alone it needs %d of %d (%q), want %d and a level", got.Needs, got.Room, got.Level, r.cycle.Bytes())
	}
	whole := r.Status().Room
	others = whole - r.cycle.Bytes()
	if again, err := r.Look(); again || err != nil {
		t.Errorf("beside a model for which there is room: %v, %v; want false", again, err)
	}
	others = r.cycle.Bytes()
	if again, err := r.Look(); !again || err != nil {
		t.Fatalf("beside a model of the same size: %v, %v; want true", again, err)
	}
	r.Attach(r.Controller)
	r.run(16)
	status := r.Status()
	if status.Activity != prefetch.Helping || status.Held > whole/2 || status.Held < whole/4 || status.Room != whole {
		t.Errorf("beside another model: %v, of a room of %d; want about half of %d held", status, status.Room, whole)
	}
	others = 0
	if _, err := r.Run(1, r.cycle, 16); !errors.As(err, &stood) || stood.Reason != prefetch.Fits ||
		strings.Contains(stood.Error(), "shared") {
		t.Errorf("alone again: %v, want that it fits", err)
	}
}
