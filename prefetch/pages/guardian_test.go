package pages

// This file lets the test's program be its own guardian.

import (
	"os"
	"testing"

	"tensorcast/prefetch/readahead"
)

// guardianVariable makes the test's program a guardian of a disk's readahead.
const guardianVariable = "TENSORCAST_TEST_GUARDIAN"

func TestMain(m *testing.M) {
	if os.Getenv(guardianVariable) == "" {
		os.Exit(m.Run())
	}
	if readahead.Guard(os.Stdin, os.Stdout) != nil {
		os.Exit(1)
	}
}
