package embed

import (
	"fmt"
	"time"

	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/membership/static"
	"go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	"go.temporal.io/server/common/primitives"
	"go.temporal.io/server/temporal"
)

// serverConfig returns the configuration of one process with all four services on one database.
func serverConfig(database *config.SQL, p *ports) *config.Config {
	service := func(port int) config.Service {
		return config.Service{RPC: config.RPC{GRPCPort: port, BindOnIP: loopback}}
	}
	return &config.Config{
		Global: config.Global{
			// Nobody joins: hosts are static. The field only bounds how long services may take to start.
			Membership: config.Membership{MaxJoinDuration: 30 * time.Second, BroadcastAddress: loopback},
		},
		Persistence: config.Persistence{
			DefaultStore:    sqlite.PluginName,
			VisibilityStore: sqlite.PluginName,
			// The number can never change for a database. One is right for one process with one writer.
			NumHistoryShards: 1,
			DataStores:       map[string]config.DataStore{sqlite.PluginName: {SQL: database}},
		},
		ClusterMetadata: &cluster.Config{
			FailoverVersionIncrement: 10,
			MasterClusterName:        clusterName,
			CurrentClusterName:       clusterName,
			ClusterInformation: map[string]cluster.ClusterInformation{
				clusterName: {Enabled: true, InitialFailoverVersion: 1, RPCAddress: p.frontend},
			},
		},
		DCRedirectionPolicy: config.DCRedirectionPolicy{Policy: "noop"},
		Services: map[string]config.Service{
			string(primitives.FrontendService): service(portOf(p.frontend)),
			string(primitives.HistoryService):  service(p.history),
			string(primitives.MatchingService): service(p.matching),
			string(primitives.WorkerService):   service(p.worker),
		},
		Archival: config.Archival{
			History:    config.HistoryArchival{State: config.ArchivalDisabled},
			Visibility: config.VisibilityArchival{State: config.ArchivalDisabled},
		},
		NamespaceDefaults: config.NamespaceDefaults{Archival: config.ArchivalNamespaceDefaults{
			History:    config.HistoryArchivalNamespaceDefaults{State: config.ArchivalDisabled},
			Visibility: config.VisibilityArchivalNamespaceDefaults{State: config.ArchivalDisabled},
		}},
		PublicClient: config.PublicClient{HostPort: p.frontend},
	}
}

// hosts says where each service is, which replaces the gossip of a real cluster.
func (p *ports) hosts() map[primitives.ServiceName]static.Hosts {
	return map[primitives.ServiceName]static.Hosts{
		primitives.FrontendService: static.SingleLocalHost(p.frontend),
		primitives.HistoryService:  static.SingleLocalHost(hostPort(p.history)),
		primitives.MatchingService: static.SingleLocalHost(hostPort(p.matching)),
		primitives.WorkerService:   static.SingleLocalHost(hostPort(p.worker)),
	}
}

// dynamicConfig is where this server differs from a cluster's defaults.
func dynamicConfig() dynamicconfig.StaticClient {
	return dynamicconfig.StaticClient{
		// A cluster's 128,000 cached workflows are more memory than a laptop should give.
		dynamicconfig.HistoryCacheHostLevelMaxSize.Key(): 8096,
		// Ten list calls a second are less than one `status` of a large rollout with the UI open beside it.
		dynamicconfig.FrontendMaxNamespaceVisibilityRPSPerInstance.Key(): 100,
		// Limits that protect a shared database protect nothing here.
		dynamicconfig.FrontendPersistenceMaxQPS.Key(): 10000,
		dynamicconfig.HistoryPersistenceMaxQPS.Key():  45000,
		// Together they push a cancellation to the worker, in some 50 ms. Otherwise it waits for the next heartbeat.
		dynamicconfig.WorkerCommandsEnabled.Key():             true,
		dynamicconfig.EnableCancelActivityWorkerCommand.Key(): true,
		// No phone-home.
		dynamicconfig.EnableServerVersionCheck.Key(): false,
		// Partitions spread a queue over hosts. With one host they only scatter pollers.
		dynamicconfig.MatchingNumTaskqueueReadPartitions.Key():  1,
		dynamicconfig.MatchingNumTaskqueueWritePartitions.Key(): 1,
		// Stamps an authenticated caller on signal events, should one ever be known.
		dynamicconfig.EnablePrincipalPropagation.Key(): true,
	}
}

// startTemporal starts the four services and returns when they are up.
func (s *Server) startTemporal(cfg *config.Config, hosts map[primitives.ServiceName]static.Hosts) error {
	err := catchFatal(func() error {
		server, err := temporal.NewServer(
			temporal.WithConfig(cfg),
			temporal.ForServices(temporal.DefaultServices),
			temporal.WithStaticHosts(hosts),
			temporal.WithLogger(s.log),
			temporal.WithDynamicConfigClient(dynamicConfig()),
		)
		if err != nil {
			return err
		}
		s.temporal = server
		return server.Start()
	})
	if err != nil {
		return fmt.Errorf("start embedded Temporal: %w", err)
	}
	return nil
}
