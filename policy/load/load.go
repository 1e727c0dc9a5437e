// Package load reads documents: strict YAML in, policy documents out, or every fault at once with its place, its field
// and what is allowed there.
//
// It must not decide anything about a rollout, know an adapter, or let through what it does not understand: a field, a
// type or a rule that it does not know, or that nothing acts on yet, is a fault. It compiles expressions and templates
// and evaluates none.
package load

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed-a0a4f4e3/sluice/executors"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// Bounds on what is read. A large fleet written by hand is about 1 MiB; what is above these is not documents.
const (
	maxFileBytes  = 4 << 20
	maxTotalBytes = 16 << 20
	maxFiles      = 1000
	// maxFaults is how many faults are listed; the rest is counted. More is one mistake repeated, or no documents at all.
	maxFaults = 1000
)

// Registry is what the documents may name, a visible list of each.
type Registry struct {
	Executors []executors.Kind
	Providers []ProviderKind
}

// ProviderKind is one kind of metric provider, as far as documents are concerned.
type ProviderKind struct {
	// Name is the `type` of a metric's provider, e.g. "prometheus".
	Name string
	// Decode checks the provider's part of a metric, without type and connection, templates not yet rendered. An error
	// that is an executors.Faults lists every fault by its field.
	Decode func(config json.RawMessage) error
	// Result are the fields that a measurement's `result` may have; none: not known, and any name is taken.
	Result []string
}

// File is one file of documents. Name is how faults call it.
type File struct {
	Name string
	Data []byte
}

// Loader turns files into documents. It is safe for concurrent use.
type Loader struct {
	executors []executors.Kind
	providers []ProviderKind
}

// New returns a loader for documents that may name what is in the registry.
func New(r Registry) *Loader {
	return &Loader{executors: slices.Clone(r.Executors), providers: slices.Clone(r.Providers)}
}

// Files reads the documents of all files as one bundle. The error is a policy.Faults with every fault, in the order of
// the files and of their lines; then the bundle is empty.
func (l *Loader) Files(files []File) (policy.Bundle, error) {
	s := &session{loader: l, fileOrder: map[string]int{}}
	total := 0
	for i, file := range files {
		if _, seen := s.fileOrder[file.Name]; !seen {
			s.fileOrder[file.Name] = i
		}
		total += len(file.Data)
		switch {
		case len(file.Data) > maxFileBytes:
			s.fault(policy.Place{File: file.Name}, "", "the file has %d bytes; at most %d (4 MiB) are allowed", len(file.Data), maxFileBytes)
		case total > maxTotalBytes:
			s.fault(policy.Place{File: file.Name}, "", "all files up to this one have %d bytes; at most %d (16 MiB) are allowed", total, maxTotalBytes)
		default:
			for _, document := range s.parse(file) {
				s.document(document)
			}
		}
	}
	s.finish()
	if s.found == 0 && s.documents == 0 {
		s.fault(policy.Place{}, "", "no documents found; each begins with `type:` and `name:`")
	}
	if s.found == 0 {
		return s.bundle, nil
	}
	slices.SortStableFunc(s.faults, func(a, b policy.Fault) int {
		return cmp.Or(
			cmp.Compare(s.fileOrder[a.Place.File], s.fileOrder[b.Place.File]),
			cmp.Compare(a.Place.Line, b.Place.Line),
			cmp.Compare(a.Place.Column, b.Place.Column),
		)
	})
	if unlisted := s.found - len(s.faults); unlisted > 0 {
		s.faults = append(s.faults, policy.Fault{Message: fmt.Sprintf("%d more faults are not listed; mend these first", unlisted)})
	}
	return policy.Bundle{}, s.faults
}

// ReadDir reads one file, or a folder's *.yaml, *.yml and *.json files and those of its subfolders, in the order of
// their paths. Names that begin with a dot are left alone. A link to a file is followed, one to a folder is not. The
// files are named by path and the way from there.
func ReadDir(path string) ([]File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	if !info.IsDir() {
		file, err := readFile(path)
		if err != nil {
			return nil, err
		}
		return []File{file}, nil
	}
	var files []File
	total := 0
	root := path
	if link, err := os.Lstat(path); err == nil && link.Mode()&fs.ModeSymlink != 0 {
		root += string(filepath.Separator) // the folder that was named is walked even if it is a link
	}
	err = filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("load: %w", err)
		}
		hidden := strings.HasPrefix(entry.Name(), ".") && name != root
		if entry.IsDir() {
			if hidden {
				return fs.SkipDir
			}
			return nil
		}
		if hidden || !slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(name))) {
			return nil
		}
		if target, err := os.Stat(name); err != nil {
			return fmt.Errorf("load: %w", err)
		} else if target.IsDir() {
			return nil
		}
		file, err := readFile(name)
		if err != nil {
			return err
		}
		files = append(files, file)
		if total += len(file.Data); len(files) > maxFiles || total > maxTotalBytes {
			return fmt.Errorf("load: %s: more than %d files or 16 MiB; name a smaller folder", path, maxFiles)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("load: %s: the folder holds no *.yaml, *.yml or *.json file", path)
	}
	return files, nil
}

func readFile(name string) (File, error) {
	info, err := os.Stat(name)
	if err != nil {
		return File{}, fmt.Errorf("load: %w", err)
	}
	if !info.Mode().IsRegular() {
		return File{}, fmt.Errorf("load: %s: not a regular file", name)
	}
	if info.Size() > maxFileBytes {
		return File{}, fmt.Errorf("load: %s: the file has %d bytes; at most %d (4 MiB) are allowed", name, info.Size(), maxFileBytes)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return File{}, fmt.Errorf("load: %w", err)
	}
	return File{Name: filepath.ToSlash(name), Data: data}, nil
}

// session is one call of Files.
type session struct {
	loader    *Loader
	fileOrder map[string]int
	faults    policy.Faults
	found     int // faults, those beyond maxFaults too
	bundle    policy.Bundle
	documents int
	// expanded counts the nodes made so far, aliases written out.
	expanded int

	seen        map[string]policy.Place // type and name → where it was first
	checks      map[string]*metric      // by name
	verified    []*verification         // one per policy that has the rule, in document order
	boundTo     []reference             // environments that deployments name
	waits       []waiting               // deploymentDependency rules, in document order
	environment map[string]bool
}

// reference is a name that must be that of an environment.
type reference struct {
	place      policy.Place
	path, name string
}

func (s *session) fault(place policy.Place, path, format string, args ...any) {
	if s.found++; s.found > maxFaults {
		return
	}
	s.faults = append(s.faults, policy.Fault{Place: place, Path: path, Message: fmt.Sprintf(format, args...)})
}

// finish checks what only all documents together can show.
func (s *session) finish() {
	s.resolveMetrics()
	s.resolveWaits()
	for _, ref := range s.boundTo {
		if !s.environment[ref.name] {
			names := make([]string, 0, len(s.environment))
			for name := range s.environment {
				names = append(names, name)
			}
			slices.Sort(names)
			s.fault(ref.place, ref.path, "no Environment of the name %q%s", ref.name, knownOr(suggest(ref.name, names), names))
		}
	}
}

// knownOr says what a misspelt name may have meant, else what there is.
func knownOr(suggestion string, names []string) string {
	const most = 20
	switch {
	case suggestion != "":
		return fmt.Sprintf("; did you mean %q?", suggestion)
	case len(names) == 0:
		return "; there is none"
	case len(names) > most:
		return fmt.Sprintf("; there are %s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	default:
		return "; there are: " + strings.Join(names, ", ")
	}
}

// providerFaults returns the faults of an error that a decoder gave.
func providerFaults(err error) executors.Faults {
	var faults executors.Faults
	if errors.As(err, &faults) && len(faults) > 0 {
		return faults
	}
	return executors.Faults{{Message: err.Error()}}
}
