package activities

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger/ledgertest"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// A dependency that anything but a success on the wanted version met would let a release out before what it stands on.
func TestAwaitDependency(t *testing.T) {
	record := func(version, state, of string, targets ...ledger.TargetRecord) ledger.Record {
		return ledger.Record{Rollout: "R", Of: of, Version: version, State: state, Sequence: 1, StartedAt: time.Unix(1, 0), Targets: targets}
	}
	target := func(name, state string) ledger.TargetRecord { return ledger.TargetRecord{Name: name, State: state} }
	for _, tt := range []struct {
		name    string
		kind    policy.DependencyKind
		record  *ledger.Record
		want    string // of the error
		met     []string
		missing []string
	}{
		{name: "no rollout", kind: policy.WaitForEnvironment, want: `waiting for environment "x": it has had no rollout yet`},
		{name: "another version", kind: policy.WaitForEnvironment, record: ref(record("v1", "Succeeded", "")), want: "its last rollout is of v1, wanted is v2"},
		{name: "a going rollout", kind: policy.WaitForEnvironment, record: ref(record("v2", "Running", "")), want: "its rollout of v2 is Running"},
		{name: "failures", kind: policy.WaitForEnvironment, record: ref(record("v2", "SucceededWithFailures", "")), want: "its rollout of v2 is SucceededWithFailures"},
		{name: "taken back", kind: policy.WaitForEnvironment, record: ref(record("v2", "RolledBack", "Q")), want: "its last rollout, of v2, was taken back"},
		{name: "a success", kind: policy.WaitForEnvironment, record: ref(record("v2", "Succeeded", "")), met: []string{"a", "b"}},
		{name: "none of the targets", kind: policy.WaitForDeployment, record: ref(record("v2", "Running", "", target("a", "Failed"), target("c", "Succeeded"))), want: "its rollout of v2 has succeeded on none of the targets that wait"},
		{name: "one of the targets", kind: policy.WaitForDeployment, record: ref(record("v2", "Running", "", target("a", "Failed"), target("b", "NoChange"))), met: []string{"b"}, missing: []string{"a"}},
		{name: "a target of another version", kind: policy.WaitForDeployment, record: ref(record("v3", "Succeeded", "", target("a", "Succeeded"))), want: "its last rollout is of v3, wanted is v2"},
		{name: "a target", kind: policy.WaitForTarget, want: "a target is waited for inside of the rollout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			memory := ledgertest.NewMemory()
			in := DependencyInput{Kind: tt.kind, Name: "x", Environment: "prod", Deployment: "web", Version: "v2", Targets: []string{"a", "b"}}
			if tt.record != nil {
				r := *tt.record
				if r.Environment, r.Deployment = "x", "web"; tt.kind == policy.WaitForDeployment {
					r.Environment, r.Deployment = "prod", "x"
				}
				if err := memory.PutRecord(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
			out, err := (&Activities{Log: memory}).AwaitDependency(t.Context(), in)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %+v and %v, want an error with %q", out, err, tt.want)
				}
				return
			}
			if err != nil || !slices.Equal(out.Met, tt.met) || !slices.Equal(out.Missing, tt.missing) {
				t.Errorf("got %+v and %v, want met %v, missing %v", out, err, tt.met, tt.missing)
			}
		})
	}
}

func ref(r ledger.Record) *ledger.Record { return &r }
