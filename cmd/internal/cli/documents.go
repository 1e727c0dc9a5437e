package cli

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-a0a4f4e3/sluice/cmd/internal/wire"
	"github.com/seed-a0a4f4e3/sluice/policy"
	"github.com/seed-a0a4f4e3/sluice/policy/load"
)

// addFiles adds -f.
func addFiles(cmd *cobra.Command, files *[]string) {
	cmd.Flags().StringArrayVarP(files, "file", "f", nil, "a document or a folder of documents (*.yaml, *.yml, *.json); may be given again")
}

// documents are the files that were read. Their names are relative to the folder that they share, so that the same
// documents have the same digest wherever they lie.
type documents struct {
	files  []load.File
	folder string
}

// readDocuments reads the documents under the given files and folders.
func readDocuments(roots []string) (documents, error) {
	if len(roots) == 0 {
		return documents{}, usagef("which documents? Give -f with a file or a folder")
	}
	var files []load.File
	for _, root := range roots {
		some, err := load.ReadDir(root)
		if err != nil {
			return documents{}, usagef("read the documents: %w", err)
		}
		for _, f := range some {
			f.Name = path.Clean(f.Name)
			files = append(files, f)
		}
	}
	slices.SortFunc(files, func(a, b load.File) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(files); i++ {
		if files[i].Name == files[i-1].Name {
			return documents{}, usagef("%s is given twice", files[i].Name)
		}
	}
	return relative(files), nil
}

// relative strips the folder that all documents share.
func relative(files []load.File) documents {
	shared := path.Dir(files[0].Name)
	for _, f := range files {
		for shared != "." && shared != "/" && !strings.HasPrefix(f.Name, shared+"/") {
			shared = path.Dir(shared)
		}
	}
	if shared == "." {
		return documents{files: files}
	}
	for i := range files {
		files[i].Name = strings.TrimPrefix(strings.TrimPrefix(files[i].Name, shared), "/")
	}
	return documents{files: files, folder: shared}
}

// placed gives faults the file names as the person would find them again.
func (d documents) placed(err error) error {
	var (
		faults  policy.Faults
		refused *wire.Refused
	)
	if !errors.As(err, &faults) {
		return err
	}
	// A message may name a place too, as that of the first of two.
	var mentioned []string
	for _, f := range d.files {
		mentioned = append(mentioned, " at "+f.Name+":", " at "+path.Join(d.folder, f.Name)+":")
	}
	inMessages := strings.NewReplacer(mentioned...)
	out := make(policy.Faults, len(faults))
	for i, fault := range faults {
		if fault.Place.File != "" {
			fault.Place.File = path.Join(d.folder, fault.Place.File)
		}
		fault.Message = inMessages.Replace(fault.Message)
		out[i] = fault
	}
	if errors.As(err, &refused) {
		return &wire.Refused{Faults: out}
	}
	return out
}

// counted is a number and its noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if strings.HasSuffix(noun, "y") {
		return fmt.Sprintf("%d %sies", n, strings.TrimSuffix(noun, "y"))
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
