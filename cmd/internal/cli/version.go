package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/out"
)

// version is what a build calls itself; the linker writes it (see VERSION_VAR in the Makefile). Empty: the module's own
// version, if there is one.
var version string

// VersionOptions are what `version` is asked.
type VersionOptions struct {
	Factory *Factory
	Format  *out.FormatFlag
}

// Version is the result of `version`: what the Go toolchain wrote into the program.
type Version struct {
	Version string `json:"version"`
	// Commit is the Git commit, Modified whether the sources differed from it.
	Commit   string `json:"commit,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// NewCmdVersion returns the command; runF, when not nil, runs in place of it.
func NewCmdVersion(f *Factory, runF func(*cobra.Command, *VersionOptions) error) *cobra.Command {
	o := &VersionOptions{Factory: f, Format: out.NewFormatFlag(out.Table, out.JSON, out.YAML)}
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program",
		Args:  exactArgs(0, "version takes flags only"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if runF != nil {
				return runF(cmd, o)
			}
			return versionRun(o)
		},
	}
	addFormat(cmd, o.Format)
	return cmd
}

func versionRun(o *VersionOptions) error {
	f := o.Factory
	v := buildVersion()
	if o.Format.Format() != out.Table {
		return out.Write(f.Out, o.Format.Format(), v)
	}
	commit := ""
	if v.Commit != "" {
		commit = " " + v.Commit[:min(12, len(v.Commit))]
	}
	if v.Modified {
		commit += " (modified)"
	}
	_, err := fmt.Fprintf(f.Out, "%s %s%s, %s, %s\n", f.Program, v.Version, commit, v.Go, v.Platform)
	return err
}

// buildVersion reads what the toolchain wrote.
func buildVersion() Version {
	v := Version{Version: cmp.Or(version, "(devel)"), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version = cmp.Or(version, info.Main.Version, v.Version)
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			v.Commit = setting.Value
		case "vcs.time":
			v.Time = setting.Value
		case "vcs.modified":
			v.Modified = setting.Value == "true"
		}
	}
	return v
}
