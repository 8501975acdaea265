package synth

// This file chooses a model's dimensions for a given file size.

import (
	"fmt"
	"math"
)

// Sized returns base with Layers, Embd, FF, Heads and KVHeads set so that the file has about target
// bytes: within 2 % from 50 MB (dense) or 300 MB (32 experts) on, usually within 1 %. Smaller files
// have coarser steps. If no model comes within a quarter of target (because it is too small, or too
// large for the proportions), the error is a *ConfigError.
//
// The proportions are those of trained models: depth grows with width, FF is about 2.75 times Embd
// (divided by the number of experts used), heads are 64 or 128 wide, and up to four query heads
// share one key head.
func Sized(target int64, base Config) (Config, error) {
	const (
		embdStep   = 256
		widest     = 16384
		mostLayers = 128
	)
	if arch := base.withDefaults().Arch; arch != llamaArch {
		return Config{}, &ConfigError{"size",
			fmt.Sprintf("it is known which dimensions a llama of that size has, not a %s; give its "+
				"dimensions instead", arch)}
	}
	// 64 and 256 are multiples of the types' block lengths.
	ffStep := max(64, int(base.Type.BlockElems()))
	ffRatio := 2.75 / float64(max(base.withDefaults().Used, 1))

	best, bestCost, bestSize := Config{}, math.Inf(1), 0.
	narrowest := embdStep
	if base.Routes != nil {
		narrowest = (leastWidth(len(base.Routes.Tokens)) + embdStep - 1) / embdStep * embdStep
	}
	for embd := narrowest; embd <= widest; embd += embdStep {
		c := base.withDefaults()
		c.Embd, c.Layers, c.FF = embd, 1, ffStep
		c.Heads, c.KVHeads = usualHeads(embd)
		if err := c.check(); err != nil {
			return Config{}, err
		}
		fixed, layer, err := sizes(c)
		if err != nil {
			return Config{}, err
		}
		c.FF = 2 * ffStep
		_, next, err := sizes(c)
		if err != nil {
			return Config{}, err
		}
		perStep := float64(next - layer) // a layer's size is a linear function of FF
		usualFF := ffRatio * float64(embd)
		usualLayers := max(4, float64(embd)/128)
		for layers := 1; layers <= mostLayers; layers++ {
			steps := math.Round((float64(target-fixed)/float64(layers) - float64(layer)) / perStep)
			steps = max(0, min(steps, math.Floor(4*usualFF/float64(ffStep))))
			c.Layers, c.FF = layers, ffStep*(1+int(steps))
			size := float64(fixed) + float64(layers)*(float64(layer)+steps*perStep)
			// The size has priority over the usual proportions: a deviation of the size counts ten
			// times as much as the same deviation of the proportions, and beyond 1 % a hundred
			// times.
			miss := math.Abs(size/float64(target) - 1)
			cost := 10*miss + 100*max(0, miss-0.01) +
				math.Abs(math.Log(float64(layers)/usualLayers)) + math.Abs(math.Log(float64(c.FF)/usualFF))
			if cost < bestCost {
				best, bestCost, bestSize = c, cost, size
			}
		}
	}
	if best.Layers == 0 || math.Abs(bestSize/float64(target)-1) > 0.25 {
		return Config{}, &ConfigError{"size",
			fmt.Sprintf("no model of usual proportions has about %d bytes (the closest has %.0f); give its "+
				"dimensions instead", target, bestSize)}
	}
	return best, nil
}

// usualHeads returns the numbers of query heads and of key/value heads for a width that is a multiple of 256.
func usualHeads(embd int) (heads, kvHeads int) {
	heads = embd / 64
	if embd >= 2048 {
		heads = embd / 128
	}
	for shared := 4; shared > 1 && heads >= 8; shared-- {
		if heads%shared == 0 {
			return heads, heads / shared
		}
	}
	return heads, heads
}

// sizes returns the bytes of cfg's file that do not depend on the number of layers, and the bytes
// of one layer's weights.
func sizes(cfg Config) (fixed, layer int64, err error) {
	outside, inside := vocabTensors(cfg), layerTensors(cfg, 0)
	if err := setSizes(outside); err != nil {
		return 0, 0, err
	}
	if err := setSizes(inside); err != nil {
		return 0, 0, err
	}
	fixed = int64(len(header(cfg, outside)))
	for _, t := range outside {
		fixed += t.Size
	}
	for _, t := range inside {
		layer += t.Size
	}
	return fixed, layer, nil
}
