package llamatest

// This file lists the kinds of routers that tests run.

import (
	"fmt"

	"tensorcast/experiments/synth"
	"tensorcast/gguf"
)

// Routers describes a small model for each kind of router that synth makes. The key names the kind.
func Routers() map[string]synth.Config {
	with := func(arch string, change func(c *synth.Config)) synth.Config {
		c := synth.Config{Layers: 3, Embd: 256, FF: 128, Heads: 4, KVHeads: 2, Type: gguf.Q8_0, Seed: 1, Arch: arch,
			Experts: 16, Used: 4}
		if change != nil {
			change(&c)
		}
		return c
	}
	m := map[string]synth.Config{
		"llama grouped":     with("llama", func(c *synth.Config) { c.Groups, c.GroupsUsed = 4, 2 }),
		"qwen2moe shared":   with("qwen2moe", func(c *synth.Config) { c.Shared = 2 }),
		"qwen3moe":          with("qwen3moe", func(c *synth.Config) { c.Experts, c.Used = 32, 8 }),
		"deepseek2 softmax": with("deepseek2", nil),
		"deepseek2 sigmoid": with("deepseek2", func(c *synth.Config) { c.Sigmoid, c.Shared = true, 2 }),
		"deepseek2 sigmoid groups": with("deepseek2",
			func(c *synth.Config) { c.Sigmoid, c.Groups, c.GroupsUsed = true, 4, 2 }),
		"deepseek2 fused": with("deepseek2",
			func(c *synth.Config) { c.Sigmoid, c.Fused, c.Type, c.FF = true, true, gguf.Q4_K, 256 }),
		"gpt-oss":          with("gpt-oss", nil),
		"deepseek4 hashed": with("deepseek4", func(c *synth.Config) { c.Hashed = 2 }),
	}
	for used := 1; used <= 8; used++ {
		m[fmt.Sprintf("llama top-%d", used)] = with("llama", func(c *synth.Config) { c.Layers, c.Used = 2, used })
	}
	return m
}
