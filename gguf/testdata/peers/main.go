// Command peers reads GGUF files with gpustack/gguf-parser-go, the oracle and rival of gguf's tests. It is a module of
// its own, so that this project does not depend on that one.
//
//	peers FILE         prints one JSON object: what is in the file
//	peers FILE N       reads it N times: prints nanoseconds and bytes allocated for each
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	parser "github.com/gpustack/gguf-parser-go"
)

type tensor struct {
	Name   string   `json:"name"`
	Shape  []uint64 `json:"shape"`
	Type   uint32   `json:"type"`
	Offset uint64   `json:"offset"` // from the beginning of the file
	Size   uint64   `json:"size"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	f, err := parser.ParseGGUFFile(args[0])
	if err != nil {
		return err
	}
	if len(args) > 1 {
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		return measure(args[0], n)
	}
	var all struct {
		Keys    int      `json:"keys"`
		Tensors []tensor `json:"tensors"`
	}
	all.Keys = len(f.Header.MetadataKV)
	for _, t := range f.TensorInfos {
		all.Tensors = append(all.Tensors, tensor{
			t.Name, t.Dimensions, uint32(t.Type), uint64(f.TensorDataStartOffset) + t.Offset, t.Bytes(),
		})
	}
	return json.NewEncoder(os.Stdout).Encode(all)
}

func measure(path string, n int) error {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	for range n {
		if _, err := parser.ParseGGUFFile(path); err != nil {
			return err
		}
	}
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	_, err := fmt.Println(took.Nanoseconds()/int64(n), (after.TotalAlloc-before.TotalAlloc)/uint64(n))
	return err
}
