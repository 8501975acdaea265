package confine

// This file tests the start of a target.

import (
	"context"
	"errors"
	"testing"

	"tensorcast/internal/cgroup"
)

// TestStartTargetTooLate checks that the error says why the context has ended.
func TestStartTargetTooLate(t *testing.T) {
	cause := errors.New("it took too long")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := StartTarget(ctx, &cgroup.Group{}, []string{"sleep", "1000"}); !errors.Is(err, cause) {
		t.Errorf("the error is %v, want %v", err, cause)
	}
}
