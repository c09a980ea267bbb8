"""Keys of RocketMQ's broker.conf that have no effect here: worth one warning, not a refusal.

Read over so that a file from an existing cluster can be used as it is.
"""

from __future__ import annotations

UNSUPPORTED_KEYS = frozenset(
    """
    accessMessageInMemoryMaxRatio ackMessageThreadPoolNums ackThreadPoolQueueCapacity aclEnable
    adminBrokerThreadPoolNums allAckInSyncStateSet authenticationEnabled authorizationEnabled
    brokerFastFailureEnable brokerHeartbeatInterval brokerIP2 brokerNotActiveTimeoutMillis
    brokerRole clearRetryTopicWhenDeleteTopic clientManageThreadPoolNums coldCtrStrategyEnable
    coldDataFlowControlEnable commitIntervalCommitLog compressedRegister configManagerVersion
    consumerManageThreadPoolNums defaultMessageRequestMode defaultPopShareQueueNum
    defaultQueryMaxNum deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval
    deleteTopicWithBrokerRegistration destroyMapedFileIntervalForcibly
    disableConsumeIfConsumerReadSlowly dLegerGroup dLegerPeers dLegerSelfId duplicationEnable
    enableAutoInSyncReplicas enableBroadcastOffsetStore enableCalcFilterBitMap enableCompaction
    enableConsumeQueueExt enableControllerMode enableCreateSysGroup enableDLegerCommitLog enableLmq
    enableMultiDispatch enablePopBatchAck enablePopBufferMerge enablePopMessageThreshold
    enablePropertyFilter enableRemoteEscape enableRetryTopicV2 enableScheduleAsyncDeliver
    enableSingleTopicRegister enableSlaveActingMaster enableSplitRegistration
    enabledAppendPropCRC endTransactionThreadPoolNums fetchNamesrvAddrByAddressServer
    filterSupportRetry flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval forceRegister
    forceVerifyPropCRC haHousekeepingInterval haListenPort haMasterAddress haMaxGapNotInSync
    haSendHeartbeatInterval haTransferBatchSize heartbeatThreadPoolNums inSyncReplicas
    litePullMessageEnable lockInStrictMode mappedFileSizeTimerLog maxFilterMessageSize
    maxMsgsNumBatch maxPopPollingSize maxRecoveryCommitlogFiles maxTransferBytesOnMessageInDisk
    maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk
    maxTransferCountOnMessageInMemory messageIndexSafe messageStorePlugIn metricsGrpcExporterTarget
    minInSyncReplicas msgTraceTopicName namesrvDomain offsetCheckInSlave
    osPageCacheBusyTimeOutMills popCkMaxBufferSize popCkStayBufferTime popCkStayBufferTimeOut
    popConsumerKVServiceEnable popFromRetryProbability popPollingSize pullMessageThreadPoolNums
    pullThreadPoolQueueCapacity putMessageTimeout queryMessageThreadPoolNums
    queryThreadPoolQueueCapacity recallMessageEnable redeleteHangedFileInterval
    rejectPullConsumerEnable rejectTransactionMessage replicasPerDiskPartition reviveInterval
    reviveQueueNum reviveScanTime rocketmqHome sendMessageThreadPoolNums
    sendThreadPoolQueueCapacity serverLoadBalancerEnable shortPollingTimeMills slaveReadEnable
    slaveTimeout startAcceptSendRequestTimeStamp storePathCommitLog storePathConsumeQueue
    storePathIndex storeReplyMessageEnable storeType subscriptionExpiredTimeout
    timerCongestNumEachSlot timerMaxDelaySec timerPrecisionMs timerRollWindowSlot timerWheelEnable
    tlsEnable topicQueueLockNum totalReplicas traceTopicEnable transactionCheckInterval
    transactionCheckMax transactionOpBatchInterval transactionOpMsgMaxSize transactionTimeOut
    transientStorePoolEnable transientStorePoolSize useReentrantLockWhenPutMessage
    useServerSideResetOffset waitTimeMillsInAckQueue waitTimeMillsInHeartbeatQueue
    waitTimeMillsInPullQueue waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue
    warmMapedFileEnable
    """.split()
)
