package hyper_test

// This file has the examples of the package's documentation.

import (
	"fmt"
	"math/rand/v2"

	"tensorcast/fabric/lab/hyper"
)

// This example stores 500 pairs of key and value in one vector of 2 bits per trit.
func Example_keyValue() {
	const items = 500
	for _, d := range []int{4096, 8192, 16384, 32768} {
		rng := rand.New(rand.NewPCG(1, 2))
		keys, values := hyper.NewMemory(d, items), hyper.NewMemory(d, items)
		v, sum := hyper.New(d), hyper.NewSum(d)
		for range items {
			hyper.Random(v, rng)
			keys.Add(v)
			hyper.Random(v, rng)
			values.Add(v)
		}
		for i := range items {
			hyper.Bind(v, keys.At(i), values.At(i))
			sum.Add(v, 1)
		}
		store := hyper.New(d)
		sum.Ternary(store, sum.Threshold(0.54)) // 54 % of normal counts are beyond 0.61 standard deviations

		found, scores := 0, make([]int32, items)
		for i := range items {
			hyper.Bind(v, store, keys.At(i))
			if values.Nearest(scores, v).Item == i {
				found++
			}
		}
		fmt.Printf("%d trits, %d bytes: %d of %d values found\n", d, d/4, found, items)
	}
	// Output:
	// 4096 trits, 1024 bytes: 161 of 500 values found
	// 8192 trits, 2048 bytes: 377 of 500 values found
	// 16384 trits, 4096 bytes: 487 of 500 values found
	// 32768 trits, 8192 bytes: 500 of 500 values found
}

// This example builds records of records of records, queries them by path, and changes a value in
// place.
func ExampleRecord() {
	const d = 16384
	rng := rand.New(rand.NewPCG(3, 4))
	words := map[string]hyper.Vector{}
	names := []string{"bread", "milk", "red", "blue", "3", "7"}
	m := hyper.NewMemory(d, len(names))
	random := func(name string) hyper.Vector {
		words[name] = hyper.New(d)
		hyper.Random(words[name], rng)
		return words[name]
	}
	for _, name := range names {
		m.Add(random(name))
	}
	for _, role := range []string{"kitchen", "cellar", "shelf", "box", "content", "colour", "count"} {
		random(role)
	}

	house := hyper.NewRecord(d, 0)
	fill := func(container *hyper.Record, content, colour, count string) {
		container.Put(words["content"], words[content])
		container.Put(words["colour"], words[colour])
		container.Put(words["count"], words[count])
	}
	kitchen, cellar := house.Child(words["kitchen"]), house.Child(words["cellar"])
	fill(kitchen.Child(words["shelf"]), "bread", "red", "3")
	fill(kitchen.Child(words["box"]), "milk", "blue", "7")
	box := cellar.Child(words["box"])
	fill(box, "bread", "blue", "7")

	query := func(path ...string) {
		roles := make([]hyper.Vector, len(path))
		for i, role := range path {
			roles[i] = words[role]
		}
		read, scratch := hyper.New(d), hyper.New(d)
		hyper.Read(read, scratch, house.Vector(), roles...)
		fmt.Println(path, names[m.Nearest(make([]int32, m.Len()), read).Item])
	}
	query("kitchen", "shelf", "colour")
	query("kitchen", "box", "content")
	query("cellar", "box", "content")

	// Trit by trit, the bread in the cellar becomes milk. The record of the house follows.
	lens, match := box.Open(words["content"], m)
	fmt.Println("in the box:", names[match.Item])
	for i := range d {
		lens.Set(i, words["milk"].At(i))
	}
	query("cellar", "box", "content")
	query("cellar", "box", "count")
	// Output:
	// [kitchen shelf colour] red
	// [kitchen box content] milk
	// [cellar box content] bread
	// in the box: bread
	// [cellar box content] milk
	// [cellar box count] 7
}
