package main

// This file tests "lab latency": its flags, its errors and its output.

import "testing"

func TestLatencyUsage(t *testing.T) {
	testUsage(t, "latency", []usageTest{
		{nil, "no model"},
		{[]string{"-m", "x"}, "--limit"},
		{[]string{"-m", "x", "--limit", "much"}, `--limit "much"`},
		{[]string{"-m", "x", "--limit", "1GB", "--tokens", "1"}, "--tokens 1"},
		{[]string{"-m", "x", "--limit", "1GB", "--threads", "0"}, "--threads 0"},
		{[]string{"-m", "x", "--limit", "1GB", "--skip", "0"}, "--skip 0"},
		{[]string{"-m", "x", "--limit", "1GB", "--skip", "20", "--tokens", "20"}, "--skip"},
	})
}
